"""Replay since: events that have been published are published again."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict

from eventservice.api.formats import format_instant, parse_duration, parse_instant, parse_uuid
from eventservice.console.base.confirm import ConfirmView
from eventservice.console.base.tenant_select import list_tenant_options
from eventservice.db.now import db_now
from eventservice.kernel.errors import Invalid
from eventservice.tenants.directory import find_tenant_names
from outbox.maintenance import preview_replay, replay

# What one request may do: about a second's work. All else is for the command.
MOST_REPLAYED = 10_000
LOOKED_AT = 50_000
LONGEST_AGO = timedelta(days=3660)
WORD = "replay"


@dataclass(frozen=True, slots=True)
class Asked:
    """`since` None: it cannot be read."""

    text: str
    since: datetime | None
    tenant: str
    tenant_id: uuid.UUID | None

    @property
    def wrong(self) -> dict[str, str]:
        faults = {}
        if self.text and self.since is None:
            faults["since"] = (
                "Give a time with its offset, such as 2026-03-01T12:00:00Z, or how long ago: 2h."
            )
        if self.tenant and self.tenant_id is None:
            faults["tenant"] = "That is no tenant."
        return faults

    @property
    def command(self) -> str:
        """What does the same without the limits of a request."""
        of_tenant = f" --tenant {self.tenant_id}" if self.tenant_id else ""
        return f"manage.py outbox replay --since {format_instant(self.since)}{of_tenant}"


class ReplayEvents(ConfirmView):
    nav = "outbox"
    template = "console/outbox/replay.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        return self._show(read_asked(request.GET))

    def _show(self, asked: Asked) -> HttpResponse:
        wrong = asked.wrong
        tenants = list_tenant_options(asked.tenant_id)
        context: dict[str, Any] = {"asked": asked, "wrong": wrong, "tenants": tenants, "word": WORD}
        if asked.since is not None and not wrong:
            found = preview_replay(asked.since, asked.tenant_id, LOOKED_AT)
            context |= {
                "found": found,
                "since": format_instant(asked.since),
                "tenant_name": find_tenant_names([asked.tenant_id]).get(asked.tenant_id)
                if asked.tenant_id
                else "",
                "too_far": not found.reaches(asked.since),
                "too_many": found.count > MOST_REPLAYED,
                "most": MOST_REPLAYED,
                "looked_at": LOOKED_AT,
            }
        return self.render(context, status=400 if wrong else 200)

    def post(self, request: HttpRequest) -> HttpResponse:
        self.require_typed_word(WORD)
        asked = read_asked(request.POST)
        since, wrong = asked.since, asked.wrong
        if since is None or wrong:
            raise Invalid("invalid", " ".join(wrong.values()) or "Say since when.")
        count = self.run_audited(
            "events-replay",
            lambda: replay_some(since, asked),
            tenant_id=asked.tenant_id,
            subject="outbox",
            changed=bool,
            since=format_instant(since),
        )
        if count:
            self.report_success(f"{count:,} events are published again, under the same event ids.")
        else:
            self.report_success("Nothing to publish again: no event was published since then.")
        return self.redirect_to("console:outbox")


def replay_some(since: datetime, asked: Asked) -> int:
    found = preview_replay(since, asked.tenant_id, LOOKED_AT)
    if found.count > MOST_REPLAYED or not found.reaches(since):
        raise Invalid("too_many", f"That is more than one request may do. Run: {asked.command}")
    return replay(since, asked.tenant_id, found.after)


def read_asked(given: QueryDict) -> Asked:
    text, tenant = given.get("since", "").strip(), given.get("tenant", "").strip()
    tenant_id = parse_uuid(tenant) if tenant else None
    return Asked(text, _moment(text), tenant, tenant_id if find_tenant_names([tenant_id]) else None)


def _moment(text: str) -> datetime | None:
    seconds = parse_duration(text)
    if seconds is None:
        return parse_instant(text)
    return db_now() - min(timedelta(seconds=min(seconds, LONGEST_AGO.total_seconds())), LONGEST_AGO)

"""Replay: events that have been published since a given time are published again."""

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
from outbox.replay import preview_replay, replay

# About a second's work, which one request may do. The command has no such limits.
MAX_REPLAYED = 10_000
MAX_EXAMINED = 50_000
MAX_AGE = timedelta(days=3660)
WORD = "replay"


@dataclass(frozen=True, slots=True)
class ReplayQuery:
    """The parameters of a replay. `since` is None if its text cannot be parsed, `tenant_id` if there is no such tenant."""

    text: str
    since: datetime | None
    tenant: str
    tenant_id: uuid.UUID | None

    @classmethod
    def parse(cls, parameters: QueryDict) -> ReplayQuery:
        text, tenant = parameters.get("since", "").strip(), parameters.get("tenant", "").strip()
        tenant_id = parse_uuid(tenant) if tenant else None
        return cls(text, _parse_since(text), tenant, tenant_id if find_tenant_names([tenant_id]) else None)

    @property
    def errors(self) -> dict[str, str]:
        errors = {}
        if self.text and self.since is None:
            errors["since"] = (
                "Enter a duration such as 2h, or a time with its offset such as 2026-03-01T12:00:00Z."
            )
        if self.tenant and self.tenant_id is None:
            errors["tenant"] = "Unknown tenant."
        return errors

    @property
    def command(self) -> str:
        """The command that does the same without the limits of a request."""
        tenant = f" --tenant {self.tenant_id}" if self.tenant_id else ""
        return f"manage.py outbox replay --since {format_instant(self.since)}{tenant}"


class ReplayEvents(ConfirmView):
    nav = "events"
    template = "console/events/replay.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        query = ReplayQuery.parse(request.GET)
        errors = query.errors
        tenants = list_tenant_options(query.tenant_id)
        context: dict[str, Any] = {"query": query, "errors": errors, "tenants": tenants, "word": WORD}
        if query.since is not None and not errors:
            context |= _preview(query, query.since)
        return self.render(context, status=400 if errors else 200)

    def post(self, request: HttpRequest) -> HttpResponse:
        self.require_typed_word(WORD)
        query = ReplayQuery.parse(request.POST)
        since, errors = query.since, query.errors
        if since is None or errors:
            raise Invalid("invalid", " ".join(errors.values()) or "Enter the time from which to replay.")
        count = self.run_audited(
            "events-replay",
            lambda: _replay_some(query, since),
            tenant_id=query.tenant_id,
            subject="outbox",
            changed=bool,
            since=format_instant(since),
        )
        if count:
            self.report_success(f"{count:,} events will be published again with the same event ids.")
        else:
            self.report_success("Nothing to replay: no events have been published since then.")
        return self.redirect_to("console:events")


def _preview(query: ReplayQuery, since: datetime) -> dict[str, Any]:
    found = preview_replay(since, query.tenant_id, MAX_EXAMINED)
    return {
        "found": found,
        "since": format_instant(since),
        "tenant_name": find_tenant_names([query.tenant_id]).get(query.tenant_id) if query.tenant_id else "",
        "too_far": not found.reaches(since),
        "too_many": found.count > MAX_REPLAYED,
        "max_replayed": MAX_REPLAYED,
        "max_examined": MAX_EXAMINED,
    }


def _replay_some(query: ReplayQuery, since: datetime) -> int:
    found = preview_replay(since, query.tenant_id, MAX_EXAMINED)
    if found.count > MAX_REPLAYED or not found.reaches(since):
        raise Invalid("too_many", f"Too many events for one request. Run: {query.command}")
    return replay(since, query.tenant_id, found.after)


def _parse_since(text: str) -> datetime | None:
    seconds = parse_duration(text)
    if seconds is None:
        return parse_instant(text)
    return db_now() - min(timedelta(seconds=min(seconds, MAX_AGE.total_seconds())), MAX_AGE)

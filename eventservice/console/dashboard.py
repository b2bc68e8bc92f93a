"""Dashboard: how it stands, how it went, and what needs attention."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from eventservice.api.formats import format_instant, parse_uuid
from eventservice.console import charts
from eventservice.console.alerts import attention
from eventservice.console.base.tenant_select import list_tenant_options
from eventservice.console.base.views import ConsoleView
from eventservice.db.bounded_count import MAX_COUNTED
from eventservice.db.now import db_now
from eventservice.kernel.errors import Invalid, NotFound
from eventservice.templatetags.console import capped, duration
from eventservice.tenants.models import Tenant
from orchestration.statistics.charts import (
    SPANS,
    Counted,
    Outcomes,
    Share,
    Slice,
    Span,
    by_host,
    by_tenant,
    counted,
    lateness,
    slices,
)
from orchestration.statistics.live import Pulse, add_latest, has_calls, pulse
from outbox.status import get_status as get_outbox_status
from timers.operator_views import list_nodes

USUAL = "1h"
HOUR = SPANS["1h"]
# What was due since the figures were last counted is added from the calls themselves, but of no more than this.
TAIL = timedelta(minutes=10)
# They are counted each minute.
OLD = timedelta(minutes=3)

DUE = (
    ("overdue", "Overdue"), ("within1m", "< 1 m"), ("within5m", "< 5 m"), ("within1h", "< 1 h"),
    ("within24h", "< 24 h"), ("later", "Later"),
)  # fmt: skip
ENDS = {
    "within1m": timedelta(minutes=1), "within5m": timedelta(minutes=5), "within1h": timedelta(hours=1),
    "within24h": timedelta(hours=24),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tile:
    name: str
    value: str
    note: str
    href: str
    level: str = ""  # worry, alarm


@dataclass(frozen=True)
class Asked:
    """What the address says."""

    span: Span
    tenant_id: uuid.UUID | None
    now: datetime

    def link(self, **filters: Any) -> str:
        """To the list of these calls."""
        given = {name: format_instant(v) if isinstance(v, datetime) else v for name, v in filters.items()}
        if self.tenant_id is not None:
            given.setdefault("tenant", str(self.tenant_id))
        return f"{reverse('console:calls')}?{urlencode(given)}"

    def address(self, **changed: str) -> str:
        given = {"range": self.span.name, "tenant": str(self.tenant_id or ""), **changed}
        return "?" + urlencode({name: value for name, value in given.items() if value})

    @cached_property
    def tenants(self) -> Sequence[Tenant]:
        """To choose from."""
        return list_tenant_options(self.tenant_id)


class DashboardPage(ConsoleView):
    nav = "dashboard"
    template = "console/dashboard.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        asked = read_asked(request.GET)
        frame = {
            "asked": asked,
            "ranges": [(span.name, asked.address(range=span.name)) for span in SPANS.values()],
            "tenants": asked.tenants,
            "now": asked.now,
        }
        found = pulse(asked.tenant_id, asked.now)
        outbox, live = get_outbox_status(MAX_COUNTED), _live_roles(asked.now)
        is_new = not has_calls(asked.tenant_id)
        figures = Figures(asked)
        return self.render(
            {
                **frame,
                "tiles": tiles(asked, found, figures.last_hour, outbox, live),
                "attention": attention(asked.tenant_id, asked.now, found, outbox, live, asked.link),
                "is_new": is_new,
                **(_first_call(request, asked) if is_new else figures.drawn(found)),
            }
        )


def read_asked(given: Mapping[str, str]) -> Asked:
    span = SPANS.get(given.get("range") or USUAL)
    if span is None:
        raise Invalid("invalid_range", f"The range must be one of {', '.join(SPANS)}.")
    tenant_id = None
    if given.get("tenant"):
        tenant_id = parse_uuid(given["tenant"])
        if tenant_id is None or not Tenant.objects.filter(pk=tenant_id).exists():
            raise NotFound("tenant")
    return Asked(span, tenant_id, db_now())


def _live_roles(now: datetime) -> dict[str, int]:
    return Counter(node.role for node in list_nodes() if node.is_alive(now))


# --- tiles --------------------------------------------------------------------------------------------------------


def tiles(
    asked: Asked, found: Pulse, last_hour: Sequence[Slice], outbox: Any, live: Mapping[str, int]
) -> list[Tile]:
    overdue = asked.link(status="Scheduled", to=asked.now, sort="dueAt")
    everywhere = "of all tenants" if asked.tenant_id else ""
    return [
        Tile("Due now", capped(found.overdue), "waiting to start", overdue),
        Tile("Running", capped(found.running), "under way", asked.link(status="Running")),
        Tile(
            "Oldest overdue",
            duration(found.oldest_overdue) if found.overdue else "–",
            "past its due time" if found.overdue else "nothing is overdue",
            overdue,
            _level(found.oldest_overdue.total_seconds(), 10, 60),
        ),
        _success(asked, last_hour),
        _p95(last_hour),
        Tile(
            "Outbox lag",
            duration(outbox.lag) if outbox.unpublished else "–",
            f"{capped(outbox.unpublished)} unpublished"
            if outbox.unpublished
            else everywhere or "all published",
            reverse("console:outbox"),
            _level(outbox.lag.total_seconds(), 10, 60),
        ),
        Tile(
            "Live nodes",
            f"{sum(live.values())}",
            _say_roles(live),
            reverse("console:timers"),
            "" if {"engine", "dispatcher"} <= set(live) else "alarm",
        ),
    ]


def _say_roles(live: Mapping[str, int]) -> str:
    roles = [role if count == 1 else f"{count} {role}s" for role, count in sorted(live.items(), reverse=True)]
    return ", ".join(roles).replace("leavings", "leaving") or "nothing runs"


def _success(asked: Asked, last_hour: Sequence[Slice]) -> Tile:
    ended = Outcomes()
    for one in last_hour:
        ended.add(one.outcomes.succeeded, one.outcomes.failed, one.outcomes.canceled)
    since = asked.now - HOUR.length
    href, note = asked.link(status="Failed", **{"from": since}), f"{ended.failed:,} failed"
    if ended.success is None:
        return Tile("Success (1 h)", "–", "nothing ended", asked.link(**{"from": since, "to": asked.now}))
    level = _level(1 - ended.success, 0.05, 0.2)
    return Tile("Success (1 h)", charts.format_share(ended.success), note, href, level)


def _p95(last_hour: Sequence[Slice]) -> Tile:
    late = lateness([sum(counts) for counts in zip(*(one.late for one in last_hour), strict=True)], 0.95)
    level = _level((late or 0) / 1000, 1, 10)
    return Tile("p95 lateness (1 h)", charts.format_lateness(late), "from due to started", "#lateness", level)


def _level(value: float, worry: float, alarm: float) -> str:
    return "alarm" if value > alarm else "worry" if value > worry else ""


# --- charts -------------------------------------------------------------------------------------------------------


class Figures:
    """What charts and tiles show, read once."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked

    @cached_property
    def counted(self) -> Counted:
        return counted(self.asked.tenant_id)

    @cached_property
    def of_span(self) -> list[Slice]:
        return self._read(self.asked.span)

    @cached_property
    def last_hour(self) -> list[Slice]:
        return self.of_span if self.asked.span is HOUR else self._read(HOUR)

    def _read(self, span: Span) -> list[Slice]:
        now, tenant_id = self.asked.now, self.asked.tenant_id
        found = slices(tenant_id, span, now)
        add_latest(found, tenant_id, max(self.counted.until or now - TAIL, now - TAIL), now)
        return found

    def drawn(self, found: Pulse) -> dict[str, Any]:
        asked, span = self.asked, self.asked.span
        begin = self.of_span[0].starts_at
        is_empty = not any(one.outcomes.total for one in self.of_span)
        return {
            "plots": [
                ("throughput", charts.throughput(self.of_span, span, asked.link)),
                ("lateness", charts.lateness(self.of_span, span)),
            ],
            "is_empty": is_empty,
            "longer": _longer(asked) if is_empty else "",
            "said_span": charts.format_span(span),
            "by_tenant": None if asked.tenant_id else self._by_tenant(begin),
            "by_host": charts.outcome_bars(
                [
                    _named(share, share.key, asked, begin, "host")
                    for share in by_host(asked.tenant_id, span, asked.now)
                ]
            ),
            "backlog": charts.count_bars(_backlog(asked, found)),
            "counted": self.counted,
            "is_old": self.counted.until is not None and self.counted.until < asked.now - OLD,
            "is_partial": self.counted.history_until is not None and self.counted.history_until > begin,
        }

    def _by_tenant(self, begin: datetime) -> list[charts.Bar]:
        shares = by_tenant(self.asked.span, self.asked.now)
        names = dict(Tenant.objects.filter(pk__in=[s.key for s in shares if s.key]).values_list("pk", "name"))
        return charts.outcome_bars(
            [_named(share, names.get(share.key), self.asked, begin, "tenant") for share in shares]
        )


def _named(
    share: Share, name: str | None, asked: Asked, begin: datetime, key: str
) -> tuple[str, str, Outcomes]:
    if share.key is None:
        return "All others", "", share.outcomes
    href = asked.link(**{key: str(share.key), "from": begin, "to": asked.now})
    return name or str(share.key), href, share.outcomes


def _backlog(asked: Asked, found: Pulse) -> list[tuple[str, str, str, int, str]]:
    rows, begin = [], None
    for key, name in DUE:
        end = asked.now if key == "overdue" else asked.now + ENDS[key] if key in ENDS else None
        within = {name: moment for name, moment in (("from", begin), ("to", end)) if moment is not None}
        count = found.backlog[key]
        kind = "overdue" if key == "overdue" else "scheduled"
        href = asked.link(status="Scheduled", sort="dueAt", **within)
        rows.append((name, kind, href, min(count, MAX_COUNTED), capped(count)))
        begin = end
    return rows


def _longer(asked: Asked) -> str:
    """The next range, where there may be something."""
    names = list(SPANS)
    following = names[names.index(asked.span.name) + 1 :]
    return following[0] if following else ""


def _first_call(request: HttpRequest, asked: Asked) -> dict[str, Any]:
    tenants = asked.tenants
    tenant_id = asked.tenant_id or (tenants[0].pk if len(tenants) == 1 else None)
    root = request.build_absolute_uri("/api/v1/tenants/")
    return {
        "first_call": f"curl -X POST {root}{tenant_id or '$TENANT'}/service-calls \\\n"
        "     -H \"Authorization: Bearer $KEY\" -H 'Content-Type: application/json' \\\n"
        '     -d \'{"name": "hello", "requestSpec": {"method": "GET", "url": "https://example.com/"}}\'',
        "has_tenants": bool(tenants),
    }

"""The dashboard: what happens now, what needs attention, and how the calls of the chosen range ended."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from eventservice.api.formats import format_instant, parse_uuid
from eventservice.console import charts
from eventservice.console.base.tenant_select import list_tenant_options
from eventservice.console.base.views import ConsoleView
from eventservice.db.bounded_count import MAX_COUNTED, format_capped
from eventservice.db.now import db_now
from eventservice.kernel.errors import Invalid, NotFound
from eventservice.kernel.findings import Finding, Severity
from eventservice.operators.formatting import (
    NOTHING,
    format_count,
    format_duration,
    format_lateness,
    format_period,
    format_share,
)
from eventservice.operators.health import (
    FAILED_SHARE,
    OUTBOX_LAG,
    OVERDUE,
    ROLES,
    START_DELAY_MS,
    WEB_PROCESS,
    ClusterState,
    FailingEndpointFinding,
    FailingHostFinding,
    LimitFinding,
    RetryingHostFinding,
    WritingFinding,
    blame_database,
    check_retrying_calls,
    check_tenant_limits,
    check_webhook_endpoints,
    diagnose,
    list_failing_hosts,
    read_cluster,
    select_problems,
)
from eventservice.runtime.models import Slot
from eventservice.tenants.models import Tenant
from orchestration.statistics.chart_data import (
    SPANS,
    ChartShare,
    ChartSlice,
    ChartSpan,
    Coverage,
    Outcomes,
    add_uncounted,
    estimate_lateness,
    list_host_shares,
    list_tenant_shares,
    read_coverage,
    read_slices,
)
from orchestration.statistics.live_counts import LiveCounts, has_calls, read_live_counts
from outbox.status import OutboxStatus
from outbox.status import get_status as get_outbox_status
from timers.models import NodeRole

DEFAULT_RANGE = "1h"
# Calls that were due since the last count are added from the calls themselves, but of no longer period than this.
MAX_UNCOUNTED = timedelta(minutes=10)
# They are counted every minute.
STALE_AFTER = timedelta(minutes=3)

BACKLOG_NAMES = {
    "overdue": "Overdue", "within1m": "< 1 m", "within5m": "< 5 m", "within1h": "< 1 h", "within24h": "< 24 h",
    "later": "Later",
}  # fmt: skip
BACKLOG_ENDS = {
    "within1m": timedelta(minutes=1), "within5m": timedelta(minutes=5), "within1h": timedelta(hours=1),
    "within24h": timedelta(hours=24),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tile:
    name: str
    value: str
    note: str
    href: str
    severity: Severity = Severity.OK


@dataclass(frozen=True, slots=True)
class Alert:
    """A problem, with a link to the page where something can be done about it."""

    finding: Finding
    href: str
    label: str


@dataclass(frozen=True)
class DashboardQuery:
    """The range and the tenant that the address asks for."""

    span: ChartSpan
    tenant_id: uuid.UUID | None
    now: datetime

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> DashboardQuery:
        span = SPANS.get(parameters.get("range") or DEFAULT_RANGE)
        if span is None:
            raise Invalid("invalid_range", f"The range must be one of {', '.join(SPANS)}.")
        tenant_id = None
        if parameters.get("tenant"):
            tenant_id = parse_uuid(parameters["tenant"])
            if tenant_id is None or not Tenant.objects.filter(pk=tenant_id).exists():
                raise NotFound("tenant")
        return cls(span, tenant_id, db_now())

    def link_to_calls(self, **filters: Any) -> str:
        """Return the address of the list of calls with these filters."""
        values = {name: format_instant(v) if isinstance(v, datetime) else v for name, v in filters.items()}
        if "host" in values:
            values["host"] = f'"{values["host"]}"'  # the whole name, not a prefix
        if self.tenant_id is not None:
            values.setdefault("tenant", str(self.tenant_id))
        return f"{reverse('console:calls')}?{urlencode(values)}"

    def build_query(self, **changes: str) -> str:
        """Return the query string of this page with some parameters changed."""
        values = {"range": self.span.name, "tenant": str(self.tenant_id or ""), **changes}
        return "?" + urlencode({name: value for name, value in values.items() if value})

    @cached_property
    def tenants(self) -> Sequence[Tenant]:
        return list_tenant_options(self.tenant_id)


class DashboardPage(ConsoleView):
    nav = "dashboard"
    template = "console/dashboard.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        query = DashboardQuery.parse(request.GET)
        live = read_live_counts(query.tenant_id, query.now)
        cluster = read_cluster(query.now, Slot.objects.all())
        outbox = get_outbox_status(MAX_COUNTED)
        is_new = not has_calls(query.tenant_id)
        figures = Figures(query)
        alerts = list(_list_alerts(query, live, outbox, cluster))
        context = {
            "query": query,
            "ranges": [(span.name, query.build_query(range=span.name)) for span in SPANS.values()],
            "tenants": query.tenants,
            "now": query.now,
            "tiles": build_tiles(query, live, figures.in_span, outbox, cluster, alerts),
            "alerts": alerts,
            "is_new": is_new,
            **(_build_first_call(request, query) if is_new else figures.build_context(live)),
        }
        return self.render(context)


# --- what needs attention -----------------------------------------------------------------------------------------


def _list_alerts(
    query: DashboardQuery, live: LiveCounts, outbox: OutboxStatus, cluster: ClusterState
) -> Iterator[Alert]:
    hosts = list_failing_hosts(query.tenant_id, query.now)
    retrying = check_retrying_calls(query.tenant_id, query.now)
    endpoints = check_webhook_endpoints(query.tenant_id, query.now)
    limits = check_tenant_limits(query.tenant_id, query.now)
    findings = blame_database(diagnose(cluster, live, outbox, WEB_PROCESS))
    for finding in select_problems([*findings, *hosts, *retrying, *endpoints, *limits]):
        yield Alert(finding, *_link_to(finding, query, live))


def _link_to(finding: Finding, query: DashboardQuery, live: LiveCounts) -> tuple[str, str]:
    """Return the address and the label of a link to what the finding is about."""
    match finding:
        case FailingHostFinding(tenant_id=tenant_id, host=host, since=since):
            failed = {"tenant": str(tenant_id), "host": host, "status": "Failed", "from": since}
            return query.link_to_calls(**failed), "Failed calls"
        case RetryingHostFinding(tenant_id=tenant_id, host=host):
            return query.link_to_calls(tenant=str(tenant_id), host=host, retrying=1), "Retrying calls"
        case FailingEndpointFinding(tenant_id=tenant_id, endpoint_id=endpoint_id):
            return reverse("console:endpoint", args=[tenant_id, endpoint_id]), "Endpoint"
        case LimitFinding(tenant_id=tenant_id):
            return reverse("console:tenant", args=[tenant_id]), "Tenant"
        case Finding(code="lost_calls") if live.lost_count == 1:
            call = live.lost[0]
            return reverse("console:call", args=[call.tenant_id, call.service_call_id]), call.name
        case Finding(code="lost_calls"):
            return query.link_to_calls(status="Running"), "Running calls"
        case Finding(code="overdue_calls"):
            return _link_to_overdue(query), "Overdue calls"
        case Finding(code="waiting_events" | "parked_events"):
            return reverse("console:events"), "Events"
    return reverse("console:cluster"), "Cluster"


def _link_to_overdue(query: DashboardQuery) -> str:
    return query.link_to_calls(status="Scheduled", to=query.now, sort="dueAt")


# --- tiles --------------------------------------------------------------------------------------------------------


def build_tiles(
    query: DashboardQuery,
    live: LiveCounts,
    slices: Sequence[ChartSlice],
    outbox: OutboxStatus,
    cluster: ClusterState,
    alerts: Sequence[Alert] = (),
) -> list[Tile]:
    """Build the tiles: the present state, and how the calls of the chosen range ended.

    If one of the alerts is that the database cannot be written to, nobody knows which nodes are alive.
    """
    trouble = next((alert.finding for alert in alerts if isinstance(alert.finding, WritingFinding)), None)
    overdue = _link_to_overdue(query)
    return [
        Tile("Due now", format_capped(live.overdue), "waiting to start", overdue),
        Tile(
            "Running",
            format_capped(live.running),
            "attempts in progress",
            query.link_to_calls(status="Running"),
        ),
        Tile(
            "Retrying",
            format_capped(live.retrying),
            "waiting for another attempt",
            query.link_to_calls(retrying=1),
        ),
        Tile(
            "Oldest overdue",
            format_duration(live.oldest_overdue) if live.overdue else NOTHING,
            "past its due time" if live.overdue else "nothing is overdue",
            overdue,
            OVERDUE.rate(live.oldest_overdue),
        ),
        _build_success_tile(query, slices),
        _build_lateness_tile(query, slices),
        _build_outbox_tile(query, outbox),
        _build_nodes_tile(cluster, trouble),
    ]


def _build_success_tile(query: DashboardQuery, slices: Sequence[ChartSlice]) -> Tile:
    name, since = f"Success ({query.span.name})", slices[0].starts_at
    ended = Outcomes()
    for one in slices:
        ended.add(one.outcomes.succeeded, one.outcomes.failed, one.outcomes.canceled)
    if ended.success is None:
        href = query.link_to_calls(**{"from": since, "to": query.now})
        return Tile(name, NOTHING, "no call ended", href)
    href = query.link_to_calls(status="Failed", **{"from": since})
    severity = FAILED_SHARE.rate(1 - ended.success)
    return Tile(name, format_share(ended.success), f"{ended.failed:,} failed", href, severity)


def _build_lateness_tile(query: DashboardQuery, slices: Sequence[ChartSlice]) -> Tile:
    late = estimate_lateness(
        [sum(counts) for counts in zip(*(one.late for one in slices), strict=True)], 0.95
    )
    severity = START_DELAY_MS.rate(late or 0.0)
    name = f"p95 lateness ({query.span.name})"
    return Tile(name, format_lateness(late), "from due to started", "#lateness", severity)


def _build_outbox_tile(query: DashboardQuery, outbox: OutboxStatus) -> Tile:
    lag, note = NOTHING, "across all tenants" if query.tenant_id else "all published"
    unpublishable = outbox.parked + outbox.waiting_behind_parked
    if unpublishable:
        note = f"no others wait; {format_capped(unpublishable)} parked or held"
    if outbox.unpublished:
        lag, note = format_duration(outbox.lag), f"{format_capped(outbox.unpublished)} unpublished"
    return Tile("Event lag", lag, note, reverse("console:events"), OUTBOX_LAG.rate(outbox.lag))


def _build_nodes_tile(cluster: ClusterState, trouble: WritingFinding | None) -> Tile:
    if trouble is not None:
        note = "the database is locked" if trouble.is_locked else "the database cannot be written to"
        return Tile("Live nodes", "unknown", note, reverse("console:cluster"), Severity.ERROR)
    roles = cluster.live_roles
    severity = Severity.OK if all(roles[role.value] for role in ROLES) else Severity.ERROR
    href = reverse("console:cluster")
    return Tile("Live nodes", f"{sum(roles.values())}", _describe_roles(roles), href, severity)


def _describe_roles(roles: Mapping[str, int]) -> str:
    others = [(NodeRole.LEAVING, "stopping"), (NodeRole.STANDBY, "waiting")]
    names = [format_count(roles[role.value], role.value) for role in ROLES if roles.get(role.value)]
    names += [f"{roles[role.value]} {word}" for role, word in others if roles.get(role.value)]
    return ", ".join(names) or "none is running"


# --- charts -------------------------------------------------------------------------------------------------------


class Figures:
    """The figures of the charts and tiles, each read once."""

    def __init__(self, query: DashboardQuery) -> None:
        self.query = query

    @cached_property
    def counted(self) -> Coverage:
        return read_coverage(self.query.tenant_id)

    @cached_property
    def in_span(self) -> list[ChartSlice]:
        now, tenant_id = self.query.now, self.query.tenant_id
        found = read_slices(tenant_id, self.query.span, now)
        add_uncounted(
            found, tenant_id, max(self.counted.until or now - MAX_UNCOUNTED, now - MAX_UNCOUNTED), now
        )
        return found

    def build_context(self, live: LiveCounts) -> dict[str, Any]:
        query, span = self.query, self.query.span
        begin = self.in_span[0].starts_at
        is_empty = not any(one.outcomes.total for one in self.in_span)
        return {
            "plots": [
                ("throughput", charts.build_throughput_plot(self.in_span, span, query.link_to_calls)),
                ("lateness", charts.build_lateness_plot(self.in_span, span)),
            ],
            "is_empty": is_empty,
            "longer_range": _find_longer_range(query) if is_empty else "",
            "range_name": format_period(span.length),
            "by_tenant": None if query.tenant_id else self._build_tenant_bars(begin),
            "by_host": charts.build_outcome_bars(
                [
                    _name_share(share, share.key, query, begin, "host")
                    for share in list_host_shares(query.tenant_id, span, query.now)
                ]
            ),
            "backlog": charts.build_count_bars(_build_backlog(query, live)),
            "counted": self.counted,
            "is_stale": self.counted.until is not None and self.counted.until < query.now - STALE_AFTER,
            "is_partial": self.counted.history_until is not None and self.counted.history_until > begin,
        }

    def _build_tenant_bars(self, begin: datetime) -> list[charts.Bar]:
        shares = list_tenant_shares(self.query.span, self.query.now)
        names = dict(Tenant.objects.filter(pk__in=[s.key for s in shares if s.key]).values_list("pk", "name"))
        return charts.build_outcome_bars(
            [_name_share(share, names.get(share.key), self.query, begin, "tenant") for share in shares]
        )


def _name_share(
    share: ChartShare, name: str | None, query: DashboardQuery, begin: datetime, key: str
) -> tuple[str, str, Outcomes]:
    if share.key is None:
        return "All others", "", share.outcomes
    href = query.link_to_calls(**{key: str(share.key), "from": begin, "to": query.now})
    return name or str(share.key), href, share.outcomes


def _build_backlog(query: DashboardQuery, live: LiveCounts) -> list[tuple[str, str, str, int, str]]:
    rows, begin = [], None
    for key, name in BACKLOG_NAMES.items():
        end = (
            query.now if key == "overdue" else query.now + BACKLOG_ENDS[key] if key in BACKLOG_ENDS else None
        )
        within = {name: moment for name, moment in (("from", begin), ("to", end)) if moment is not None}
        count = live.backlog[key]
        kind = "overdue" if key == "overdue" else "scheduled"
        href = query.link_to_calls(status="Scheduled", sort="dueAt", **within)
        rows.append((name, kind, href, min(count, MAX_COUNTED), format_capped(count)))
        begin = end
    return rows


def _find_longer_range(query: DashboardQuery) -> str:
    """Return the name of the next longer range, or an empty string."""
    names = list(SPANS)
    following = names[names.index(query.span.name) + 1 :]
    return following[0] if following else ""


def _build_first_call(request: HttpRequest, query: DashboardQuery) -> dict[str, Any]:
    tenants = query.tenants
    tenant_id = query.tenant_id or (tenants[0].pk if len(tenants) == 1 else None)
    root = request.build_absolute_uri("/api/v1/tenants/")
    return {
        "first_call": f"curl -X POST {root}{tenant_id or '$TENANT'}/service-calls \\\n"
        "     -H \"Authorization: Bearer $KEY\" -H 'Content-Type: application/json' \\\n"
        '     -d \'{"name": "hello", "requestSpec": {"method": "GET", "url": "https://example.com/"}}\'',
        "has_tenants": bool(tenants),
    }

"""/metrics for Prometheus: figures of the whole system, read from the database, so any web process can answer.

Requests are counted in shared memory (http_metrics), and processes are read from /proc (process_metrics).

Calls are counted over the last minutes, because no index can count all calls of the past. So these figures are gauges,
and lateness is a summary with quantiles only: Prometheus would take a histogram whose counts fall for one that was reset
each time.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import TypeVar

from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from eventservice.api.authentication import CHALLENGE, Scope, find_principal
from eventservice.api.http_metrics import collect_http_metrics, list_web_processes
from eventservice.api.problems import Problem, handle_exception
from eventservice.api.process_metrics import collect_process_metrics
from eventservice.db.dialects import get_dialect
from eventservice.db.now import db_now
from eventservice.db.totals import read_totals
from eventservice.kernel.ttl_cache import TTLCache
from eventservice.tenants.directory import list_tenant_ids
from eventservice.tenants.models import LimitCode
from eventservice.tenants.refusals import TOTALS_PREFIX as REFUSALS_PREFIX
from eventservice.tenants.refusals import count_current_refusals, list_current_refusals
from orchestration.engine.attempt_totals import BUCKETS, read_attempt_totals
from orchestration.events import EventType
from orchestration.lifecycle.timer_marks import measure_marks
from orchestration.statistics.recent_sample import RecentStatistics, read_recent_statistics
from outbox.dispatcher import TOTALS_PREFIX as EVENTS_PREFIX
from outbox.publishers.webhook.recovery import count_gone_endpoints
from outbox.status import get_status as get_outbox_status
from timers.models import Node, NodeRole
from timers.operator_views import count_shards_by_owner, list_nodes
from timers.pause import find_pause
from timers.shard_sizes import get_shard_sizes

Labels = TypeVar("Labels", bound=tuple[str, ...])

WINDOW = timedelta(minutes=5)
OUTCOMES = {
    EventType.SUBMITTED: "submitted",
    EventType.SUCCEEDED: "succeeded",
    EventType.FAILED: "failed",
    EventType.CANCELED: "canceled",
    EventType.RESCHEDULED: "rescheduled",
}
QUANTILES = (0.5, 0.95, 0.99)
# Several scrapers, or one with a short interval, cost the database no more than one.
CACHE_SECONDS = 2.0
# Labels must be few, so of the tenants at a limit only those with the most refusals have a metric of their own.
MAX_NAMED_TENANTS = 20

_rendered: TTLCache[str, bytes] = TTLCache(CACHE_SECONDS)


@csrf_exempt
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    try:
        if not settings.METRICS_OPEN:
            _require_operator(request)
        render, content_type = choose_encoder(request.headers.get("Accept", ""))
        text = _rendered.get(content_type, lambda: _render_metrics(render))
        return HttpResponse(text, content_type, headers={"Cache-Control": "no-store", "Vary": "Accept"})
    except (Problem, DatabaseError) as error:
        return handle_exception(error, {"request": request})


def _require_operator(request: HttpRequest) -> None:
    """Raise Problem unless the request has the key of an operator, with the scope `read`."""
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    principal = find_principal(text.strip()) if scheme.lower() == "bearer" else None
    if principal is None or not principal.is_operator:
        detail = "Metrics are for operators: send the API key of an operator."
        raise Problem(401, "not_authenticated", detail, headers={"WWW-Authenticate": CHALLENGE})
    if Scope.READ not in principal.scopes:
        raise Problem(403, "scope_missing", "This needs the scope 'read', which the key does not have.")


def _render_metrics(render: Callable[[CollectorRegistry], bytes]) -> bytes:
    registry = CollectorRegistry()
    registry.register(SystemCollector())
    return render(registry)


class SystemCollector(Collector):
    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        found = read_recent_statistics(list_tenant_ids(), WINDOW)
        yield from _collect_calls(found)
        now, nodes = db_now(), list_nodes()
        yield from _collect_nodes([node for node in nodes if node.is_alive(now)])
        yield from _collect_outbox()
        yield from _collect_timer_marks(now)
        yield from _collect_totals()
        yield from _collect_limits(now)
        paused = {(): float(find_pause() is not None)}
        yield _gauge("dispatch_paused", "1 while dispatch is paused: nothing is sent.", paused)
        yield from _collect_disk()
        yield from collect_http_metrics()
        here = {node.process_id: node.role for node in nodes if node.hostname == socket.gethostname()}
        yield from collect_process_metrics(here | dict.fromkeys([os.getpid(), *list_web_processes()], "web"))


def _gauge(name: str, text: str, values: Mapping[Labels, float], labels: tuple[str, ...] = ()) -> Metric:
    family = GaugeMetricFamily(f"eventservice_{name}", text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def _collect_calls(found: RecentStatistics) -> Iterator[Metric]:
    backlog = {(when,): float(count) for when, count in found.backlog.items()}
    yield _gauge("calls_scheduled", "Scheduled calls, by when they are due.", backlog, ("due",))
    overdue = {(): float(found.backlog["overdue"])}
    yield _gauge("due_backlog", "Calls that are due and have not been started.", overdue)
    oldest = {(): found.oldest_overdue.total_seconds()}
    yield _gauge("oldest_overdue_seconds", "How long the oldest of these calls has been due.", oldest)
    yield _gauge("calls_running", "Calls with a running attempt.", {(): float(found.running)})
    retrying = {(): float(found.retrying)}
    yield _gauge("calls_retrying", "Scheduled calls that wait for another attempt.", retrying)
    ended = {(status,): float(count) for status, count in found.ended.items()}
    yield _gauge("calls_ended_5m", "Calls due in the last 5 minutes that have ended.", ended, ("status",))
    kinds = {(kind,): float(count) for kind, count in found.error_kinds.items()}
    yield _gauge("calls_failed_by_kind_5m", "The latest failures of these calls, by kind.", kinds, ("kind",))
    about = "Seconds from due to started, of the latest calls of the last 5 minutes."
    lateness = Metric("eventservice_lateness_seconds_5m", about, "summary")
    for share in QUANTILES:
        if (milliseconds := found.lateness(share)) is not None:
            lateness.add_sample(lateness.name, {"quantile": str(share)}, milliseconds / 1000)
    yield lateness


def _collect_disk() -> Iterator[Metric]:
    free = get_dialect().count_free_bytes()
    if free is not None:
        about = "Free space of the disk that SQLite's file is on."
        yield _gauge("database_disk_free_bytes", about, {(): float(free)})


def _collect_nodes(live: Sequence[Node]) -> Iterator[Metric]:
    # A role that nobody has is 0 and not absent, so that an alert can compare it.
    roles: dict[tuple[str, ...], float] = {(role.value,): 0.0 for role in NodeRole}
    for node in live:
        roles[(node.role,)] += 1
    yield _gauge("nodes", "Live processes, by role.", roles, ("role",))
    in_flight = {(str(node.owner_id),): float(node.in_flight) for node in live}
    yield _gauge("in_flight", "Running attempts, by node.", in_flight, ("node",))
    owners = {(str(owner or "none"),): float(count) for owner, count in count_shards_by_owner().items()}
    yield _gauge("shards_owned", "Shards, by owner.", owners, ("owner",))
    sizes = get_shard_sizes()
    about = "Scheduled timers of a shard, as they were counted last"
    yield _gauge("shard_timers_max", f"{about}: the largest shard.", {(): float(sizes.max_timers)})
    yield _gauge("shard_timers_mean", f"{about}: the average of all shards.", {(): sizes.mean_timers})


def _collect_timer_marks(now: datetime) -> Iterator[Metric]:
    # A store for which nothing waits is 0 and not absent.
    unused = {(spec.name,): 0.0 for spec in settings.TIMER_STORES}
    backlogs = measure_marks()
    waiting = {(backlog.store,): float(backlog.marks) for backlog in backlogs}
    about = "Attempts whose end has not been written to the timer store yet."
    yield _gauge("timer_store_marks", about, unused | waiting, ("store",))
    ages = {(backlog.store,): max(0.0, (now - backlog.oldest).total_seconds()) for backlog in backlogs}
    about = "How long the oldest of these attempts has ended."
    yield _gauge("timer_store_mark_age_seconds", about, unused | ages, ("store",))


def _collect_totals() -> Iterator[Metric]:
    events = read_totals(EVENTS_PREFIX)
    calls = CounterMetricFamily(
        "eventservice_calls", "Calls by outcome, as their events are published.", labels=("outcome",)
    )
    for kind, outcome in OUTCOMES.items():
        calls.add_metric((outcome,), events.get(kind.value, 0.0))
    yield calls
    attempts = HistogramMetricFamily(
        "eventservice_attempt_duration_seconds",
        "How long attempts took, by the class of the status or the kind of the error.",
        labels=("outcome",),
    )
    for outcome, (counts, seconds) in read_attempt_totals().items():
        bounds = [*map(str, BUCKETS), "+Inf"]
        cumulated = list(accumulate(counts))
        attempts.add_metric((outcome,), list(zip(bounds, cumulated, strict=True)), seconds)
    yield attempts


def _collect_limits(now: datetime) -> Iterator[Metric]:
    totals = read_totals(REFUSALS_PREFIX)
    refused = CounterMetricFamily(
        "eventservice_refusals", "Refusals because a tenant was at a limit, by error code.", labels=("code",)
    )
    for code in LimitCode:
        refused.add_metric((code.value,), totals.get(code.value, 0.0))
    yield refused
    at_limit = {(code.value,): float(count) for code, count in count_current_refusals(now).items()}
    about = "Tenants that were refused something in the last 5 minutes, by error code."
    yield _gauge("tenants_at_limit", about, at_limit, ("code",))
    current = list_current_refusals(None, now, MAX_NAMED_TENANTS)
    named = {(refusal.tenant.name, refusal.code): float(refusal.count) for refusal in current}
    about = "Refusals of these tenants since they began. Only the tenants with the most are listed."
    yield _gauge("tenant_refusals", about, named, ("tenant", "code"))


def _collect_outbox() -> Iterator[Metric]:
    found = get_outbox_status()
    yield _gauge(
        "outbox_lag_seconds", "Age of the oldest unpublished event.", {(): found.lag.total_seconds()}
    )
    yield _gauge("outbox_unpublished", "Events that have not been published.", {(): float(found.unpublished)})
    yield _gauge(
        "outbox_parked",
        "Events that were parked after failed attempts to publish them.",
        {(): float(found.parked)},
    )
    # A broker without a queue is 0 and not absent.
    unused = {(spec.name,): 0.0 for spec in settings.PUBLISHERS if spec.url}
    waiting = {(backlog.publisher,): float(backlog.count) for backlog in found.broker_backlogs}
    about = "Events that wait for a message broker."
    yield _gauge("broker_queue_events", about, unused | waiting, ("publisher",))
    lags = {(backlog.publisher,): backlog.lag.total_seconds() for backlog in found.broker_backlogs}
    about = "Age of the oldest event that waits for a message broker."
    yield _gauge("broker_queue_lag_seconds", about, unused | lags, ("publisher",))
    pending = {(): float(found.pending_deliveries)}
    yield _gauge("webhook_deliveries_pending", "Webhook deliveries that have not been made.", pending)
    gone = {(): float(count_gone_endpoints())}
    about = "Webhook endpoints that are disabled because they answered 410 Gone."
    yield _gauge("webhook_endpoints_gone", about, gone)

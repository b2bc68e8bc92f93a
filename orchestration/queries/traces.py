"""Read a trace: the calls that share a correlation id in one tenant, each with its timer, attempts, events and replays.

Every read is bounded, however many calls share the id and however often they are attempted. A trace is read a page of calls
at a time, and of each call only the last attempts and events.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Max, Min, Q

from eventservice.db.bounded_count import MAX_COUNTED
from eventservice.kernel.errors import NotFound
from execution.attempt_log import list_last_attempts
from execution.models import HttpExecution
from orchestration.models import ServiceCall
from orchestration.queries.call_lists import CallFilter, Order, Position, list_calls
from orchestration.queries.calls import CallReplay, CallSummary, list_replays_of
from orchestration.states import LIVE, Status
from outbox.models import OutboxEvent
from outbox.queries import list_last_events
from timers.persistence import timer_persistence
from timers.port import TimerEntry

MAX_ATTEMPTS_OF_CALL = 10
MAX_EVENTS_OF_CALL = 30
MAX_REPLAYS_OF_PAGE = 200
# More timers of a trace are found one by one.
MAX_TIMERS = 1000
ORDER = Order("submitted_at", descending=False)


@dataclass(frozen=True, slots=True)
class TraceOverview:
    """All calls of a trace. More than MAX_COUNTED calls count as one more, and the moments are those of the counted ones."""

    by_status: Mapping[Status, int]
    first_submitted_at: datetime
    last_finished_at: datetime | None

    @property
    def call_count(self) -> int:
        return sum(self.by_status.values())

    @property
    def has_ended(self) -> bool:
        return not any(self.by_status[status] for status in Status if status in LIVE)


@dataclass(frozen=True, slots=True)
class TracedCall:
    """A call with all that happened to it. Attempts and events are the last ones, in order, without bodies and payloads."""

    call: CallSummary
    timer: TimerEntry | None
    attempts: Sequence[HttpExecution]
    events: Sequence[OutboxEvent]
    event_count: int  # so far, including those that retention has deleted
    replays: Sequence[CallReplay]


@dataclass(frozen=True, slots=True)
class TracedCallPage:
    """Calls of a trace in the order of their submission."""

    calls: Sequence[TracedCall]
    # Where the next page begins; None: this is the last.
    following: Position | None


def get_trace_overview(tenant_id: uuid.UUID, correlation_id: uuid.UUID) -> TraceOverview:
    """Return the overview of a trace. Raise NotFound if no call of the tenant has the correlation id."""
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(correlation_id=correlation_id).order_by()
    counts = {f"count_{n}": Count("status", filter=Q(status=status)) for n, status in enumerate(Status)}
    found = calls[: MAX_COUNTED + 1].aggregate(first=Min("submitted_at"), last=Max("finished_at"), **counts)
    if found["first"] is None:
        raise NotFound("trace")
    by_status = {status: found[f"count_{n}"] for n, status in enumerate(Status)}
    return TraceOverview(by_status, found["first"], found["last"])


def read_trace_page(
    tenant_id: uuid.UUID, correlation_id: uuid.UUID, limit: int, after: Position | None = None
) -> TracedCallPage:
    """Return a page of the calls of a trace, beginning after a position."""
    wanted = CallFilter(tenant_id, correlation_id=correlation_id)
    page = list_calls([wanted], ORDER, limit, after=after)
    ids = [call.service_call_id for call in page.calls]
    last_seqs = _list_last_seqs(tenant_id, ids)
    timers = _find_timers(tenant_id, correlation_id, ids)
    attempts = list_last_attempts(
        tenant_id, {call.service_call_id: call.attempt for call in page.calls}, MAX_ATTEMPTS_OF_CALL
    )
    events = list_last_events(tenant_id, last_seqs, MAX_EVENTS_OF_CALL)
    replays = _group_replays(list_replays_of(tenant_id, ids, MAX_REPLAYS_OF_PAGE))
    calls = [
        TracedCall(
            call,
            timers.get(call.service_call_id),
            attempts.get(call.service_call_id, []),
            events.get(call.service_call_id, []),
            last_seqs.get(call.service_call_id, 0),
            replays.get(call.service_call_id, []),
        )
        for call in page.calls
    ]
    return TracedCallPage(calls, page.following)


def _find_timers(
    tenant_id: uuid.UUID, correlation_id: uuid.UUID, service_call_ids: Sequence[uuid.UUID]
) -> dict[uuid.UUID, TimerEntry]:
    first = timer_persistence.find_by_correlation(tenant_id, correlation_id, MAX_TIMERS)
    timers = {timer.service_call_id: timer for timer in first}
    if len(first) == MAX_TIMERS:
        for service_call_id in set(service_call_ids) - timers.keys():
            timer = timer_persistence.find_timer(tenant_id, service_call_id)
            if timer is not None:
                timers[service_call_id] = timer
    return timers


def _list_last_seqs(tenant_id: uuid.UUID, service_call_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, int]:
    """Return the number of the last event of each call."""
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id__in=service_call_ids)
    return {one: next_seq - 1 for one, next_seq in calls.values_list("service_call_id", "next_seq")}


def _group_replays(replays: Sequence[CallReplay]) -> dict[uuid.UUID, list[CallReplay]]:
    by_origin = defaultdict(list)
    for replay in replays:
        by_origin[replay.replay_of].append(replay)
    return by_origin

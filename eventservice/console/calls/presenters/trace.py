"""The calls of a trace on one time line: a bar for each call, and the steps of each."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from urllib.parse import urlencode

from django.urls import reverse

from eventservice.console.calls.presenters.call_state import (
    LATE_AFTER,
    compute_refresh_seconds,
    get_shown_status,
    name_last_error,
)
from eventservice.console.calls.presenters.http_exchange import format_node, get_attempt_tone
from eventservice.operators.error_kinds import get_error_name
from eventservice.operators.formatting import UNITS, format_duration, format_milliseconds
from execution.models import HttpExecution
from orchestration.queries.calls import CallReplay, CallSummary
from orchestration.queries.traces import TracedCall, TraceOverview
from orchestration.states import LIVE, Status
from outbox.models import EventState, OutboxEvent

MIN_AXIS_LENGTH = timedelta(milliseconds=1)
TICKS = 4
# In percent of the axis: an attempt of a millisecond is visible, too.
MIN_BAR_WIDTH = 0.6
MAX_REPLAYS_SHOWN = 3
# How often a page looks for events that were not published when it was made, and for calls on other pages.
EVENTS_REFRESH_SECONDS, OTHER_PAGES_REFRESH_SECONDS = 5, 15

BAR_KINDS = {"good": "succeeded", "bad": "failed", "warn": "interrupted", "waiting": "running"}
EVENT_TONES = {
    EventState.RETRYING: "warn",
    EventState.PARKED: "bad",
    EventState.HELD: "warn",
    EventState.SKIPPED: "warn",
}


def format_span(length: timedelta) -> str:
    """Return a duration in its two largest units, such as "1 m 40 s": labels of one time line must differ."""
    if length < timedelta(minutes=1):
        return format_duration(length)
    left, parts = int(length.total_seconds()), list[tuple[int, str]]()
    for size, name in UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append((count, name))
    return " ".join(f"{count} {name}" for count, name in parts[:2] if count)


class StepKind(StrEnum):
    TIMER = "timers"
    ATTEMPT = "attempts"
    EVENT = "events"
    REPLAY = "replays"


@dataclass(frozen=True, slots=True)
class TraceAxis:
    """The time from the first submission to the last thing that has happened, or to now if the trace goes on."""

    start: datetime
    end: datetime

    def locate(self, moment: datetime) -> float:
        """Return where a moment is, in percent. Moments beyond the ends are at the ends."""
        return 100 * min(max((moment - self.start) / (self.end - self.start), 0.0), 1.0)

    @property
    def ticks(self) -> list[tuple[str, str, str]]:
        """Return the position, the text and the anchor of each label."""
        length = self.end - self.start
        anchors = {0: "start", TICKS: "end"}
        return [
            (
                f"{100 * n / TICKS:g}%",
                format_span(length * n / TICKS) if n else "0",
                anchors.get(n, "middle"),
            )
            for n in range(TICKS + 1)
        ]


@dataclass(frozen=True, slots=True)
class TraceBar:
    kind: str  # waiting, or one of BAR_KINDS
    x: str
    width: str
    title: str


@dataclass(frozen=True, slots=True)
class TraceStep:
    """Something that happened to a call, or a timer that is due later."""

    kind: StepKind
    at: datetime
    rank: int  # of steps at the same time
    name: str
    tone: str = ""
    text: str = ""
    note: str = ""
    url: str = ""
    event: OutboxEvent | None = None
    cause: OutboxEvent | None = None
    offset: str = ""  # from the beginning of the trace


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A call with its bar and its steps."""

    call: CallSummary
    url: str
    status: str
    error: str
    summary: str
    bars: Sequence[TraceBar]
    due_x: str  # where the due time is, if it is on the axis
    length: str  # from submission to end, if it has ended
    timer_url: str  # of a durable timer
    replays: Sequence[CallReplay]
    has_more_replays: bool
    steps: Sequence[TraceStep]
    omitted_attempts: int
    omitted_events: int


def build_axis(overview: TraceOverview, calls: Sequence[TracedCall], now: datetime) -> TraceAxis:
    moments = [overview.last_finished_at or overview.first_submitted_at]
    for traced in calls:
        moments += [traced.call.submitted_at, *_list_attempt_moments(traced.attempts)]
    if not overview.has_ended:
        moments.append(now)
    start = overview.first_submitted_at
    return TraceAxis(start, max(start + MIN_AXIS_LENGTH, *moments))


def _list_attempt_moments(attempts: Sequence[HttpExecution]) -> list[datetime]:
    return [attempt.finished_at or attempt.started_at for attempt in attempts]


def build_trace_rows(
    calls: Sequence[TracedCall],
    axis: TraceAxis,
    hostnames: Mapping[uuid.UUID, str],
    kinds: frozenset[StepKind],
) -> list[TraceRow]:
    """Return the rows of a page with those of their steps that are of one of the kinds."""
    return [_build_row(traced, axis, hostnames, kinds) for traced in calls]


def compute_trace_refresh_seconds(overview: TraceOverview, calls: Sequence[TracedCall], now: datetime) -> int:
    """Return how long the page may wait until it refreshes, or 0 if nothing in the trace changes by itself."""
    waits = [compute_refresh_seconds(traced.call, now) for traced in calls if traced.call.status in LIVE]
    if not overview.has_ended:
        waits.append(OTHER_PAGES_REFRESH_SECONDS)
    if any(event.published_at is None for traced in calls for event in traced.events):
        waits.append(EVENTS_REFRESH_SECONDS)
    return min(waits, default=0)


def _build_row(
    traced: TracedCall, axis: TraceAxis, hostnames: Mapping[uuid.UUID, str], kinds: frozenset[StepKind]
) -> TraceRow:
    call = traced.call
    bars = list(_build_bars(traced, axis))
    steps = sorted(
        (step for step in _build_steps(traced, axis, hostnames) if step.kind in kinds),
        key=lambda step: (step.tone == "waiting", step.at, step.rank),
    )
    return TraceRow(
        call=call,
        url=reverse("console:call", args=call.key),
        status=get_shown_status(call),
        error="" if call.status == Status.SUCCEEDED else name_last_error(call),
        summary=", ".join(bar.title for bar in bars),
        bars=bars,
        due_x=f"{axis.locate(call.due_at):.2f}%" if axis.start <= call.due_at <= axis.end else "",
        length=_format_between(call.submitted_at, call.finished_at) if call.finished_at else "",
        timer_url=_build_timer_url(call),
        replays=traced.replays[:MAX_REPLAYS_SHOWN],
        has_more_replays=len(traced.replays) > MAX_REPLAYS_SHOWN,
        steps=steps,
        omitted_attempts=call.attempt - len(traced.attempts),
        omitted_events=traced.event_count - len(traced.events),
    )


def _build_timer_url(call: CallSummary) -> str:
    if call.external_id is None:
        return ""
    key = {"tenant": call.tenant_id, "namespace": call.namespace, "id": call.external_id}
    return f"{reverse('console:timer')}?{urlencode(key)}"


# --- bars ---------------------------------------------------------------------------------------------------------


def _build_bars(traced: TracedCall, axis: TraceAxis) -> Iterator[TraceBar]:
    """Yield the attempts, and the times between them in which the call waits."""
    call = traced.call
    at = call.submitted_at
    for attempt in traced.attempts:
        if attempt.started_at > at:
            yield _build_bar(
                "waiting", axis, at, attempt.started_at, f"waited {_format_between(at, attempt.started_at)}"
            )
        at = attempt.finished_at or axis.end
        result = _format_result(attempt) or "is running"
        kind = BAR_KINDS[get_attempt_tone(attempt)]
        yield _build_bar(kind, axis, attempt.started_at, at, f"attempt {attempt.attempt} {result}")
    end = call.finished_at or axis.end
    if end > at:
        verb = "waits" if call.finished_at is None else "waited"
        yield _build_bar("waiting", axis, at, end, f"{verb} {_format_between(at, end)}")


def _build_bar(kind: str, axis: TraceAxis, start: datetime, end: datetime, title: str) -> TraceBar:
    left, right = axis.locate(start), axis.locate(end)
    if kind != "waiting":
        left = min(left, 100 - MIN_BAR_WIDTH)
        right = max(right, left + MIN_BAR_WIDTH)
    return TraceBar(kind, f"{left:.2f}%", f"{right - left:.2f}%", title)


def _format_between(start: datetime, end: datetime) -> str:
    return format_span(end - start)


# --- steps --------------------------------------------------------------------------------------------------------


def _build_steps(
    traced: TracedCall, axis: TraceAxis, hostnames: Mapping[uuid.UUID, str]
) -> Iterator[TraceStep]:
    builder = _StepBuilder(traced, axis, hostnames)
    yield from builder.build_timer()
    yield from builder.build_attempts()
    yield from builder.build_events()
    yield from builder.build_replays()


class _StepBuilder:
    """Builds the steps of one call. An event has the rank ten times its number, so that others fit between them."""

    def __init__(self, traced: TracedCall, axis: TraceAxis, hostnames: Mapping[uuid.UUID, str]) -> None:
        self.traced, self.axis, self.hostnames = traced, axis, hostnames
        self.url = reverse("console:call", args=traced.call.key)
        self._event_by_id = {event.event_id: event for event in traced.events}

    def build_timer(self) -> Iterator[TraceStep]:
        timer = self.traced.timer
        if timer is None:
            return
        lead = timer.due_at - timer.registered_at
        text = f"due {format_span(lead)} later" if lead > timedelta() else "due at once"
        yield self._build_step(StepKind.TIMER, timer.registered_at, 25, "Timer set", text=text)
        if timer.reached_at is None:
            yield self._build_step(StepKind.TIMER, timer.due_at, 0, "Timer due", tone="waiting")
            return
        lateness = max(timer.reached_at - timer.due_at, timedelta())
        yield self._build_step(
            StepKind.TIMER, timer.reached_at, 27, "Timer reached",
            tone="warn" if lateness > LATE_AFTER else "info",
            text=f"{format_duration(lateness)} after the due time",
        )  # fmt: skip

    def build_attempts(self) -> Iterator[TraceStep]:
        for attempt in self.traced.attempts:
            # The event about the start of an attempt has its id.
            running = self._event_by_id.get(attempt.execution_id)
            tone = get_attempt_tone(attempt)
            yield self._build_step(
                StepKind.ATTEMPT, attempt.started_at, 10 * running.aggregate_seq + 5 if running else 26,
                f"Attempt {attempt.attempt}",
                tone="info" if tone == "waiting" else tone,
                text=_format_result(attempt) or "is running",
                note=f"on node {format_node(attempt.node, self.hostnames)}",
                url=f"{self.url}?{urlencode({'tab': 'response', 'attempt': attempt.execution_id})}",
            )  # fmt: skip

    def build_events(self) -> Iterator[TraceStep]:
        for event in self.traced.events:
            yield self._build_step(
                StepKind.EVENT, event.created_at, 10 * event.aggregate_seq, event.event_type,
                tone=EVENT_TONES.get(event.state, ""),
                text=f"event {event.aggregate_seq}",
                note=_describe_publication(event),
                url=reverse("console:event", args=[event.id]),
                event=event,
                cause=self._event_by_id.get(event.causation_id) if event.causation_id else None,
            )  # fmt: skip

    def build_replays(self) -> Iterator[TraceStep]:
        for replay in self.traced.replays[:MAX_REPLAYS_SHOWN]:
            yield self._build_step(
                StepKind.REPLAY, replay.submitted_at, 0, "Replayed",
                tone="info", text=f"the replay is {replay.status}",
                url=reverse("console:trace", args=[self.traced.call.tenant_id, replay.correlation_id]),
            )  # fmt: skip

    def _build_step(self, kind: StepKind, at: datetime, rank: int, name: str, **values: object) -> TraceStep:
        offset = f"+{format_span(max(at - self.axis.start, timedelta()))}"
        return TraceStep(kind, at, rank, name, offset=offset, **values)  # type: ignore[arg-type]


def _format_result(attempt: HttpExecution) -> str:
    """Return the response or the error of an attempt and its latency, or an empty string while it is running."""
    if attempt.finished_at is None:
        return ""
    result = get_error_name(attempt.error_kind) if attempt.error_kind else f"HTTP {attempt.response_status}"
    return result if attempt.latency_ms is None else f"{result} in {format_milliseconds(attempt.latency_ms)}"


def _describe_publication(event: OutboxEvent) -> str:
    match event.state:
        case EventState.PUBLISHED:
            assert event.published_at is not None  # noqa: S101 (it makes the state)
            delay = max(event.published_at - event.created_at, timedelta())
            return f"published after {format_duration(delay)}"
        case EventState.WAITING:
            return "not published yet"
        case EventState.RETRYING:
            return "rejected by a publisher, tried again"
        case state:
            return f"not published: {state.lower()}"

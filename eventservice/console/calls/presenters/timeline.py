"""What became of a call, step by step: from its own columns, the attempt log, and the events that are still there."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from eventservice.api.formats import parse_instant
from eventservice.console.calls.presenters.call_state import in_words, why_no_further_attempt
from execution.outcome import ErrorKind
from orchestration.events import EventType
from orchestration.queries.calls import CallDetails
from orchestration.retries import RetryPolicy
from orchestration.states import TERMINAL, Delivery, Status

# Of a call with more attempts, the first and the last are shown.
MOST_ATTEMPTS, FIRST, LAST = 12, 3, 7
# Later than this is worth a colour.
LATE = timedelta(seconds=5)

Rank = int


@dataclass(slots=True)
class Step:
    name: str
    at: datetime | None
    rank: Rank
    mood: str = ""  # good, bad, warn, info; waiting: it has not happened yet
    text: str = ""
    explained: str = ""
    plans: bool = False  # the call, for `moment`
    moment: datetime | None = None  # another time that it speaks of
    event: Any = None
    cause: Any = None  # the event that led to it, if it is still there
    attempt: Any = None
    lateness: timedelta | None = None
    node: str = ""

    @property
    def is_late(self) -> bool:
        return self.lateness is not None and self.lateness > LATE


@dataclass(frozen=True, slots=True)
class Retries:
    """Interruptions do not count: they are nobody's failure but ours."""

    made: int
    most: int
    next_at: datetime | None
    until: datetime | None


def retries_of(call: CallDetails) -> Retries:
    policy = RetryPolicy.from_stored(call.retry_policy)
    started, lasting = call.started_at, policy.max_attempts_duration
    return Retries(
        made=call.attempt - call.interruptions,
        most=policy.max_attempts,
        next_at=call.due_at if call.status == Status.SCHEDULED and call.attempt else None,
        until=started + timedelta(seconds=lasting) if started and lasting else None,
    )


def are_pruned(events: Sequence[Any]) -> bool:
    return not events or events[0].aggregate_seq > 1


def timeline(
    call: CallDetails, attempts: Sequence[Any], events: Sequence[Any], hosts: Mapping[uuid.UUID, str]
) -> list[Step]:
    known = _Known(events)
    steps = [*_beginning(call, known), *_rescheduled(known)]
    for number, attempt in enumerate(attempts):
        if FIRST <= number < len(attempts) - LAST and len(attempts) > MOST_ATTEMPTS:
            if number == FIRST:
                steps.append(_left_out(attempt, attempts[-LAST].attempt - attempt.attempt, number))
            continue
        following = attempts[number + 1] if number + 1 < len(attempts) else None
        steps += _attempt(call, attempt, following, known, hosts, 10 + 3 * number)
    steps += _present(call, known)
    for step in steps:
        step.cause = step.event and known.by_id.get(step.event.causation_id)
    return sorted(steps, key=lambda step: (step.mood == "waiting", step.at or call.due_at, step.rank))


class _Known:
    """The events, by what leads to them."""

    def __init__(self, events: Sequence[Any]) -> None:
        self.events = events
        self.by_id = {event.event_id: event for event in events}
        self.by_cause = {event.causation_id: event for event in events if event.causation_id}

    def first(self, *kinds: EventType) -> Any:
        return next((event for event in self.events if event.event_type in kinds), None)

    def last(self, *kinds: EventType) -> Any:
        return next((event for event in reversed(self.events) if event.event_type in kinds), None)


def _said_due(event: Any) -> datetime | None:
    return parse_instant(str(event.event_payload.get("dueAt"))) if event else None


def _beginning(call: CallDetails, known: _Known) -> list[Step]:
    scheduled = known.first(EventType.SCHEDULED)
    never_moved = not call.attempt and known.last(EventType.RESCHEDULED) is None
    due = _said_due(scheduled) or (call.due_at if never_moved else None)
    return [
        Step("Submitted", call.submitted_at, 0, "good", event=known.first(EventType.SUBMITTED)),
        Step("Scheduled", call.submitted_at, 1, "good", plans=True, moment=due, event=scheduled),
    ]


def _rescheduled(known: _Known) -> list[Step]:
    """By somebody: what the engine plans after an attempt belongs to the attempt."""
    return [
        Step("Rescheduled", event.created_at, 2, "info", plans=True, moment=_said_due(event), event=event)
        for event in known.events
        if event.event_type == EventType.RESCHEDULED and event.causation_id is None
    ]


def _left_out(attempt: Any, count: int, number: int) -> Step:
    return Step("…", attempt.started_at, 10 + 3 * number, "info", f"{count} more attempts: see Attempts.")


def _attempt(
    call: CallDetails,
    attempt: Any,
    following: Any,
    known: _Known,
    hosts: Mapping[uuid.UUID, str],
    rank: Rank,
) -> list[Step]:
    running = known.by_id.get(attempt.execution_id)
    reached = known.by_id.get(running.causation_id) if running else None
    due = _said_due(reached) or _due_of(call, attempt)
    if due:
        due = max(due, call.submitted_at)  # events tell whole milliseconds, rounded down
    late = max(attempt.started_at - due, timedelta()) if due else None
    node = said_node(attempt.node, hosts)
    steps = [
        Step(
            "Started",
            attempt.started_at,
            rank + 1,
            "info",
            event=running,
            lateness=late,
            node=node,
            attempt=attempt,
        )
    ]
    # Of a retry, the end of the attempt before it tells.
    if due and attempt.attempt == 1:
        steps.insert(0, Step("Due", due, rank, "info", event=reached))
    if attempt.finished_at:
        steps.append(_end(call, attempt, following, known, node, rank + 2))
    return steps


def _due_of(call: CallDetails, attempt: Any) -> datetime | None:
    """Without its event: a call knows when its last attempt was due, until it plans the next."""
    is_last = attempt.attempt == call.attempt and call.status != Status.SCHEDULED
    return call.due_at if is_last else None


def said_node(node: uuid.UUID, hosts: Mapping[uuid.UUID, str]) -> str:
    return hosts.get(node) or f"…{str(node)[-8:]}"


def _end(call: CallDetails, attempt: Any, following: Any, known: _Known, node: str, rank: Rank) -> Step:
    event = known.by_cause.get(attempt.execution_id)
    again_at = _said_due(event) if event and event.event_type == EventType.RESCHEDULED else None
    step = Step(
        f"Attempt {attempt.attempt}",
        attempt.finished_at,
        rank,
        mood_of(attempt),
        attempt=attempt,
        event=event if again_at else None,
        moment=again_at,
    )
    if attempt.error_kind == ErrorKind.INTERRUPTED:
        step.explained = _interruption(call, attempt, following, node)
    else:
        step.explained = in_words(attempt.error_kind)
    return step


def mood_of(attempt: Any) -> str:
    if attempt.finished_at is None:
        return "waiting"
    if attempt.error_kind:
        return "warn" if attempt.error_kind == ErrorKind.INTERRUPTED else "bad"
    return "good" if 200 <= (attempt.response_status or 0) < 300 else "bad"


def _interruption(call: CallDetails, attempt: Any, following: Any, node: str) -> str:
    seen = f"The end of attempt {attempt.attempt} was not seen: the node {node} died or lost its lease while making it."
    if following:
        return (
            f"{seen} The request may have been sent, so it was made again as attempt {following.attempt},"
            f" under the same idempotency key."
        )
    if call.status == Status.SCHEDULED:
        return f"{seen} It will be made again under the same idempotency key."
    if call.delivery == Delivery.AT_MOST_ONCE:
        return f"{seen} It was not made again: the call is delivered at most once."
    return seen


_OUTCOMES = {
    Status.SUCCEEDED: (EventType.SUCCEEDED, "good"),
    Status.FAILED: (EventType.FAILED, "bad"),
    Status.CANCELED: (EventType.CANCELED, "warn"),
}


def _present(call: CallDetails, known: _Known) -> list[Step]:
    """Its outcome, or what comes next."""
    status = Status(call.status)
    if status in TERMINAL:
        kind, mood = _OUTCOMES[status]
        explained = why_no_further_attempt(call) if status == Status.FAILED else ""
        return [
            Step(status.value, call.finished_at, 10_000, mood, event=known.last(kind), explained=explained)
        ]
    if status == Status.RUNNING:
        text = f"attempt {call.attempt} is under way"
        return [Step("Running", None, 10_000, "waiting", text)]
    return [Step("Due", call.due_at, 10_000, "waiting", f"attempt {call.attempt + 1}")]

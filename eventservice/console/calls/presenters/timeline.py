"""The timeline of a call, from its own columns, the attempt log, and the events that the outbox still has."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from eventservice.api.formats import parse_instant
from eventservice.console.calls.presenters.call_state import LATE_AFTER
from eventservice.console.calls.presenters.http_exchange import format_node, get_attempt_tone
from eventservice.operators.error_kinds import explain_error_kind
from execution.models import HttpExecution
from execution.outcome import ErrorKind
from orchestration.events import EventType
from orchestration.final_failures import explain_final_failure
from orchestration.queries.calls import CallDetails
from orchestration.states import TERMINAL, Delivery, Status
from outbox.models import OutboxEvent

# If there are more attempts, the timeline shows the first and the last of them.
MAX_ATTEMPTS_SHOWN, FIRST_ATTEMPTS_SHOWN, LAST_ATTEMPTS_SHOWN = 12, 3, 7
# Steps at the same time are sorted by rank. An attempt takes three ranks.
FIRST_ATTEMPT_RANK, RANKS_PER_ATTEMPT, LAST_RANK = 10, 3, 10_000


@dataclass(slots=True)
class TimelineStep:
    """One step. `tone` is good, bad, warn, info, or waiting for a step that has not happened yet."""

    name: str
    at: datetime | None
    rank: int
    tone: str = ""
    text: str = ""
    explanation: str = ""
    is_plan: bool = False  # the step plans the call for `planned_for`, if that is still known
    planned_for: datetime | None = None
    next_attempt_at: datetime | None = None
    event: OutboxEvent | None = None
    cause: OutboxEvent | None = None  # the event that led to `event`, if the outbox still has it
    attempt: HttpExecution | None = None
    lateness: timedelta | None = None
    node: str = ""

    @property
    def is_late(self) -> bool:
        return self.lateness is not None and self.lateness > LATE_AFTER


def has_pruned_events(events: Sequence[OutboxEvent]) -> bool:
    return not events or events[0].aggregate_seq > 1


def build_timeline(
    call: CallDetails,
    attempts: Sequence[HttpExecution],
    events: Sequence[OutboxEvent],
    hostnames: Mapping[uuid.UUID, str],
) -> list[TimelineStep]:
    return _TimelineBuilder(call, attempts, events, hostnames).build()


class _TimelineBuilder:
    def __init__(
        self,
        call: CallDetails,
        attempts: Sequence[HttpExecution],
        events: Sequence[OutboxEvent],
        hostnames: Mapping[uuid.UUID, str],
    ) -> None:
        self.call, self.attempts, self.events, self.hostnames = call, attempts, events, hostnames
        self._event_by_id = {event.event_id: event for event in events}
        self._event_by_cause = {event.causation_id: event for event in events if event.causation_id}

    def build(self) -> list[TimelineStep]:
        steps = [*self._build_submission(), *self._build_reschedulings(), *self._build_attempts()]
        steps.append(self._build_present())
        for step in steps:
            if step.event and step.event.causation_id:
                step.cause = self._event_by_id.get(step.event.causation_id)
        return sorted(
            steps, key=lambda step: (step.tone == "waiting", step.at or self.call.due_at, step.rank)
        )

    def _find_first(self, kind: EventType) -> OutboxEvent | None:
        return next((event for event in self.events if event.event_type == kind), None)

    def _find_last(self, kind: EventType) -> OutboxEvent | None:
        return next((event for event in reversed(self.events) if event.event_type == kind), None)

    def _build_submission(self) -> list[TimelineStep]:
        call, scheduled = self.call, self._find_first(EventType.SCHEDULED)
        never_moved = not call.attempt and self._find_last(EventType.RESCHEDULED) is None
        due = _parse_due_at(scheduled) or (call.due_at if never_moved else None)
        submitted = self._find_first(EventType.SUBMITTED)
        return [
            TimelineStep("Submitted", call.submitted_at, 0, "good", event=submitted),
            TimelineStep(
                "Scheduled", call.submitted_at, 1, "good", is_plan=True, planned_for=due, event=scheduled
            ),
        ]

    def _build_reschedulings(self) -> list[TimelineStep]:
        """Return the reschedulings by clients and operators. Those after an attempt are part of the attempt."""
        return [
            TimelineStep(
                "Rescheduled", event.created_at, 2, "info",
                is_plan=True, planned_for=_parse_due_at(event), event=event,
            )
            for event in self.events
            if event.event_type == EventType.RESCHEDULED and event.causation_id is None
        ]  # fmt: skip

    def _build_attempts(self) -> list[TimelineStep]:
        steps: list[TimelineStep] = []
        last_shown = len(self.attempts) - LAST_ATTEMPTS_SHOWN
        for index, attempt in enumerate(self.attempts):
            rank = FIRST_ATTEMPT_RANK + RANKS_PER_ATTEMPT * index
            if len(self.attempts) > MAX_ATTEMPTS_SHOWN and FIRST_ATTEMPTS_SHOWN <= index < last_shown:
                if index == FIRST_ATTEMPTS_SHOWN:
                    count = self.attempts[last_shown].attempt - attempt.attempt
                    text = f"{count} more attempts: see Attempts."
                    steps.append(TimelineStep("…", attempt.started_at, rank, "info", text))
                continue
            following = self.attempts[index + 1] if index + 1 < len(self.attempts) else None
            steps += self._build_attempt(attempt, following, rank)
        return steps

    def _build_attempt(
        self, attempt: HttpExecution, following: HttpExecution | None, rank: int
    ) -> list[TimelineStep]:
        running = self._event_by_id.get(attempt.execution_id)
        reached = self._event_by_id.get(running.causation_id) if running and running.causation_id else None
        due = _parse_due_at(reached) or self._find_due_time(attempt)
        if due:
            due = max(due, self.call.submitted_at)  # events round down to whole milliseconds
        started = TimelineStep(
            "Started", attempt.started_at, rank + 1, "info", event=running, attempt=attempt
        )
        started.lateness = max(attempt.started_at - due, timedelta()) if due else None
        started.node = format_node(attempt.node, self.hostnames)
        steps = [started]
        # When a retry is due is part of the attempt before it.
        if due and attempt.attempt == 1:
            steps.insert(0, TimelineStep("Due", due, rank, "info", event=reached))
        if attempt.finished_at:
            steps.append(self._build_end(attempt, following, rank + 2))
        return steps

    def _find_due_time(self, attempt: HttpExecution) -> datetime | None:
        """Return the due time if the event with it is deleted: the call has that of its last attempt until a retry."""
        is_last = attempt.attempt == self.call.attempt and self.call.status != Status.SCHEDULED
        return self.call.due_at if is_last else None

    def _build_end(self, attempt: HttpExecution, following: HttpExecution | None, rank: int) -> TimelineStep:
        event = self._event_by_cause.get(attempt.execution_id)
        is_retry = event is not None and event.event_type == EventType.RESCHEDULED
        step = TimelineStep(
            f"Attempt {attempt.attempt}",
            attempt.finished_at,
            rank,
            get_attempt_tone(attempt),
            attempt=attempt,
        )
        if is_retry and (next_attempt_at := _parse_due_at(event)):
            step.event, step.next_attempt_at = event, next_attempt_at
        if attempt.error_kind == ErrorKind.INTERRUPTED:
            step.explanation = self._explain_interruption(attempt, following)
        else:
            step.explanation = explain_error_kind(attempt.error_kind)
        return step

    def _explain_interruption(self, attempt: HttpExecution, following: HttpExecution | None) -> str:
        node = format_node(attempt.node, self.hostnames)
        cause = (
            f"The outcome of attempt {attempt.attempt} is unknown: node {node} died or lost its lease"
            " during the attempt."
        )
        if following:
            return (
                f"{cause} The request may have been sent, so it was repeated as attempt {following.attempt}"
                " with the same idempotency key."
            )
        if self.call.status == Status.SCHEDULED:
            return f"{cause} It will be repeated with the same idempotency key."
        if self.call.delivery == Delivery.AT_MOST_ONCE:
            return f"{cause} It was not repeated: the call is delivered at most once."
        return cause

    def _build_present(self) -> TimelineStep:
        """Return the outcome of the call, or what comes next."""
        call, status = self.call, Status(self.call.status)
        if status == Status.RUNNING:
            return TimelineStep("Running", None, LAST_RANK, "waiting", f"attempt {call.attempt}")
        if status not in TERMINAL:
            return TimelineStep("Due", call.due_at, LAST_RANK, "waiting", f"attempt {call.attempt + 1}")
        kind, tone = _OUTCOMES[status]
        explanation = explain_final_failure(call) or ""
        return TimelineStep(
            status.value,
            call.finished_at,
            LAST_RANK,
            tone,
            explanation=explanation,
            event=self._find_last(kind),
        )


_OUTCOMES = {
    Status.SUCCEEDED: (EventType.SUCCEEDED, "good"),
    Status.FAILED: (EventType.FAILED, "bad"),
    Status.CANCELED: (EventType.CANCELED, "warn"),
}


def _parse_due_at(event: OutboxEvent | None) -> datetime | None:
    return parse_instant(str(event.event_payload.get("dueAt"))) if event else None

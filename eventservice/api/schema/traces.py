"""A trace as responses show it: the calls that share a correlation id."""

from __future__ import annotations

import uuid

from pydantic import Field

from eventservice.api.schema.base import Page, ResponseModel
from eventservice.api.schema.calls import (
    AttemptBaseSchema,
    CallTimerSchema,
    CausationId,
    EventBaseSchema,
    ListedCallSchema,
    round_latency,
)
from eventservice.api.schema.types import UtcTime
from eventservice.db.bounded_count import MAX_COUNTED
from execution.models import HttpExecution
from execution.outcome import ErrorKind
from orchestration.queries.calls import CallReplay
from orchestration.queries.traces import (
    MAX_ATTEMPTS_OF_CALL,
    MAX_EVENTS_OF_CALL,
    MAX_REPLAYS_OF_PAGE,
    TracedCall,
    TraceOverview,
)
from orchestration.states import Status
from outbox.models import EventState, OutboxEvent


class TracedAttemptSchema(AttemptBaseSchema):
    status: int | None = Field(description="The status code of the response, if there was one.")
    error_kind: ErrorKind | None = Field(description="Why no response arrived.")
    latency_ms: float | None

    @classmethod
    def from_attempt(cls, attempt: HttpExecution) -> TracedAttemptSchema:
        return cls.build(
            attempt,
            status=attempt.response_status,
            error_kind=None if attempt.error_kind is None else ErrorKind(attempt.error_kind),
            latency_ms=round_latency(attempt),
        )


class TracedEventSchema(EventBaseSchema):
    state: EventState = Field(description="Whether the event has been published.")
    published_at: UtcTime | None
    causation_id: CausationId

    @classmethod
    def from_event(cls, event: OutboxEvent) -> TracedEventSchema:
        published_at = event.published_at if event.state is EventState.PUBLISHED else None
        return cls.build(event, state=event.state, published_at=published_at, causation_id=event.causation_id)


class TracedReplaySchema(ResponseModel):
    service_call_id: uuid.UUID
    correlation_id: uuid.UUID = Field(
        description="Of the request that replayed the call: the replay is in its trace."
    )
    status: Status
    submitted_at: UtcTime

    @classmethod
    def from_replay(cls, replay: CallReplay) -> TracedReplaySchema:
        return cls(
            service_call_id=replay.service_call_id,
            correlation_id=replay.correlation_id,
            status=Status(replay.status),
            submitted_at=replay.submitted_at,
        )


class TracedCallSchema(ListedCallSchema):
    """A call as lists show it, with all that happened to it."""

    timer: CallTimerSchema | None = Field(description="Null if the call was canceled before it was due.")
    executions: list[TracedAttemptSchema] = Field(
        description=f"The last {MAX_ATTEMPTS_OF_CALL} of its `attempts`, in order."
    )
    events: list[TracedEventSchema] = Field(
        description=f"Its last {MAX_EVENTS_OF_CALL} events in order, as long as the outbox keeps them."
    )
    event_count: int = Field(description="Its events so far, including those that are no longer kept.")
    replays: list[TracedReplaySchema] = Field(
        description=f"The calls that replay it, the latest first; at most {MAX_REPLAYS_OF_PAGE} of all calls of a page."
    )

    @classmethod
    def from_traced(cls, traced: TracedCall) -> TracedCallSchema:
        return cls.from_call(
            traced.call,
            timer=None if traced.timer is None else CallTimerSchema.from_timer(traced.timer),
            executions=[TracedAttemptSchema.from_attempt(attempt) for attempt in traced.attempts],
            events=[TracedEventSchema.from_event(event) for event in traced.events],
            event_count=traced.event_count,
            replays=[TracedReplaySchema.from_replay(replay) for replay in traced.replays],
        )


class TraceSchema(Page[TracedCallSchema]):
    tenant_id: uuid.UUID
    correlation_id: uuid.UUID
    call_count: int = Field(
        description=f"The calls on all pages. More than {MAX_COUNTED:,} count as {MAX_COUNTED + 1:,}."
    )
    by_status: dict[str, int] = Field(description="How many of these calls have which status.")
    first_submitted_at: UtcTime
    last_finished_at: UtcTime | None = Field(description="When the last call so far ended.")
    ended: bool = Field(description="Whether all calls have ended.")

    @classmethod
    def build(
        cls,
        tenant_id: uuid.UUID,
        correlation_id: uuid.UUID,
        overview: TraceOverview,
        calls: list[TracedCallSchema],
        next_cursor: str | None,
    ) -> TraceSchema:
        return cls(
            items=calls,
            next_cursor=next_cursor,
            tenant_id=tenant_id,
            correlation_id=correlation_id,
            call_count=overview.call_count,
            by_status={status.value: count for status, count in overview.by_status.items()},
            first_submitted_at=overview.first_submitted_at,
            last_finished_at=overview.last_finished_at,
            ended=overview.has_ended,
        )

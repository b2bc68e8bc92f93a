"""Service calls as responses show them: secrets masked, times in UTC with milliseconds."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, RootModel
from typing_extensions import TypedDict  # the one that pydantic takes before Python 3.12

from eventservice.api.formats import format_duration
from eventservice.api.schema.base import Page, ResponseModel
from eventservice.api.schema.problems import FieldErrorSchema
from eventservice.api.schema.types import Method, UtcTime
from execution.models import HttpExecution
from execution.outcome import ErrorKind
from execution.redaction import mask_headers, mask_query, mask_stored_headers
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.final_failures import explain_final_failure
from orchestration.outcome_rules import MAX_SNIPPET_LENGTH
from orchestration.queries.calls import CallDetails, CallSummary
from orchestration.retries import RetryPolicy
from orchestration.states import FAVORITE, Delivery, ResponseContract, Status
from outbox.models import OutboxEvent
from timers.models import TimerState
from timers.port import TimerEntry

# --- parts of a call ----------------------------------------------------------------------------------------------


class RetryPolicySchema(ResponseModel):
    max_attempts: int
    max_attempts_duration: str | None
    initial_interval: str
    backoff_multiplier: float
    max_interval: str

    @classmethod
    def from_policy(cls, policy: RetryPolicy) -> RetryPolicySchema:
        return cls(
            max_attempts=policy.max_attempts,
            max_attempts_duration=format_duration(policy.max_attempts_duration),
            initial_interval=format_duration(policy.initial_interval),
            backoff_multiplier=policy.backoff_multiplier,
            max_interval=format_duration(policy.max_interval),
        )

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any] | None) -> RetryPolicySchema | None:
        return None if stored is None else cls.from_policy(RetryPolicy.from_stored(stored))


class RequestSpecSchema(ResponseModel):
    method: Method
    url: str
    headers: dict[str, str] = Field(description="The values of secret headers are masked.")
    body: Any

    @classmethod
    def from_stored(cls, spec: Mapping[str, Any]) -> RequestSpecSchema:
        headers = mask_stored_headers(spec.get("headers") or {})
        return cls(method=spec["method"], url=mask_query(spec["url"]), headers=headers, body=spec.get("body"))

    @classmethod
    def from_spec(cls, spec: RequestSpec, secret_headers: frozenset[str]) -> RequestSpecSchema:
        headers = mask_headers(spec.headers, secret_headers)
        return cls(method=spec.method, url=mask_query(spec.url), headers=headers, body=spec.body)


class CallTimerSchema(ResponseModel):
    state: TimerState
    due_at: UtcTime
    registered_at: UtcTime = Field(
        description="When `dueAt` was set: by the submission, a change of the call, or a retry."
    )
    reached_at: UtcTime | None = Field(
        description="When the timer fired. Its distance to `registeredAt` is how long it was scheduled."
    )

    @classmethod
    def from_timer(cls, timer: TimerEntry) -> CallTimerSchema:
        return cls(
            state=timer.state,
            due_at=timer.due_at,
            registered_at=timer.registered_at,
            reached_at=timer.reached_at,
        )


class ResponseMetaSchema(TypedDict):
    status: int
    headers: Annotated[dict[str, str], Field(description="The values of secret headers are masked.")]
    bodySnippet: Annotated[
        str, Field(description=f"The beginning of the body, up to {MAX_SNIPPET_LENGTH} bytes.")
    ]
    latencyMs: float


class ErrorMetaSchema(TypedDict):
    kind: ErrorKind
    message: str
    details: dict[str, Any]
    latencyMs: float | None


class OutcomeSchema(TypedDict, total=False):
    responseMeta: Annotated[ResponseMetaSchema, Field(description="Present if a response arrived.")]
    errorMeta: Annotated[ErrorMetaSchema, Field(description="Present if the attempt was no success.")]


class OutcomeSummarySchema(ResponseModel):
    status: int | None = Field(description="The status code of the response, if there was one.")
    error_kind: ErrorKind | None
    latency_ms: float | None

    @classmethod
    def from_stored(cls, outcome: Mapping[str, Any] | None) -> OutcomeSummarySchema | None:
        if outcome is None:
            return None
        response, error = outcome.get("responseMeta") or {}, outcome.get("errorMeta") or {}
        return cls(
            status=response.get("status"),
            error_kind=error.get("kind"),
            latency_ms=response.get("latencyMs", error.get("latencyMs")),
        )


# --- attempts -----------------------------------------------------------------------------------------------------


class AttemptRequestSchema(ResponseModel):
    method: Method
    url: str
    headers: dict[str, str] = Field(description="The values of secret headers are masked.")
    body: str | None


class AttemptResponseSchema(ResponseModel):
    status: int
    headers: dict[str, str] | None
    body: str | None = Field(description="The beginning of the body, up to 64 KiB.")
    size: int | None = Field(description="The length of the whole body in bytes.")


class AttemptErrorSchema(ResponseModel):
    kind: ErrorKind
    message: str | None


class AttemptBaseSchema(ResponseModel):
    """The members that attempts have everywhere."""

    execution_id: uuid.UUID
    attempt: int = Field(description="1 for the first attempt.")
    node: uuid.UUID = Field(description="The engine that made the attempt.")
    started_at: UtcTime
    finished_at: UtcTime | None

    @classmethod
    def build(cls, attempt: HttpExecution, **members: Any) -> Self:
        """Return an attempt with further members."""
        return cls(
            execution_id=attempt.execution_id,
            attempt=attempt.attempt,
            node=attempt.node,
            started_at=attempt.started_at,
            finished_at=attempt.finished_at,
            **members,
        )


def round_latency(attempt: HttpExecution) -> float | None:
    return None if attempt.latency_ms is None else round(attempt.latency_ms, 1)


class AttemptSchema(AttemptBaseSchema):
    request: AttemptRequestSchema
    response: AttemptResponseSchema | None
    error: AttemptErrorSchema | None = Field(
        description="Why no response arrived. Null if one did, even one with an error status."
    )
    latency_ms: float | None
    phases: dict[Literal["dnsMs", "connectMs", "tlsMs", "firstByteMs"], float] | None = Field(
        description="Where that time went, by phase: `dnsMs`, `connectMs` and `tlsMs` are lengths, `firstByteMs` counts "
        "from the start. Only phases that took place are present."
    )

    @classmethod
    def from_attempt(cls, attempt: HttpExecution) -> AttemptSchema:
        return cls.build(
            attempt,
            request=AttemptRequestSchema(
                method=attempt.request_method,
                url=mask_query(attempt.request_url),
                headers=mask_stored_headers(attempt.request_headers),
                body=attempt.request_body,
            ),
            response=None
            if attempt.response_status is None
            else AttemptResponseSchema(
                status=attempt.response_status,
                headers=attempt.response_headers,
                body=attempt.response_body,
                size=attempt.response_size,
            ),
            error=None
            if attempt.error_kind is None
            else AttemptErrorSchema(kind=ErrorKind(attempt.error_kind), message=attempt.error_message),
            latency_ms=round_latency(attempt),
            phases=attempt.phases,
        )


# --- calls --------------------------------------------------------------------------------------------------------


class CallSchema(ResponseModel):
    """The members that calls have everywhere."""

    service_call_id: uuid.UUID
    tenant_id: uuid.UUID
    name: str
    status: Status
    namespace: str
    timer_id: str | None = Field(description="The id of a durable timer, otherwise null.")
    submitted_at: UtcTime
    due_at: UtcTime
    started_at: UtcTime | None
    finished_at: UtcTime | None
    tags: list[str]
    favorite: bool
    correlation_id: uuid.UUID
    replay_of: uuid.UUID | None = Field(description="The call that this one replays.")
    attempts: int = Field(description="Attempts made so far, including the one that is running.")


def _read_common_members(call: CallSummary | CallDetails) -> dict[str, Any]:
    """Return the members of CallSchema for a stored call."""
    return {
        "service_call_id": call.service_call_id,
        "tenant_id": call.tenant_id,
        "name": call.name,
        "status": Status(call.status),
        "namespace": call.namespace,
        "timer_id": call.external_id,
        "submitted_at": call.submitted_at,
        "due_at": call.due_at,
        "started_at": call.started_at,
        "finished_at": call.finished_at,
        "tags": sorted(call.tags),
        "favorite": FAVORITE in call.tags,
        "correlation_id": call.correlation_id,
        "replay_of": call.replay_of,
        "attempts": call.attempt,
    }


class ListedRequestSchema(ResponseModel):
    method: Method
    url: str
    host: str


class ListedCallSchema(CallSchema):
    """A call as lists show it: without headers and bodies."""

    request: ListedRequestSchema
    outcome: OutcomeSummarySchema | None

    @classmethod
    def from_call(cls, call: CallSummary, **members: Any) -> Self:
        """Return a listed call, with the further members that a subclass has."""
        return cls(
            **_read_common_members(call),
            request=ListedRequestSchema(method=call.method, url=call.url, host=call.host),
            outcome=OutcomeSummarySchema.from_stored(call.outcome_meta),
            **members,
        )


class ServiceCallSchema(CallSchema):
    """A call with its timer and its last attempt."""

    request_spec: RequestSpecSchema
    outcome: OutcomeSchema | None = Field(
        description="The result of the last attempt: `responseMeta`, `errorMeta` or both."
    )
    not_retried: str | None = Field(
        description="Why a Failed call was not attempted again, as a sentence for people. Null if it has not failed."
    )
    idempotency_key: str | None
    retry_policy: RetryPolicySchema | None
    timeout_seconds: float
    response_contract: ResponseContract = Field(
        description="The part of a response that decides whether it is a success: `status`, its status code (2xx), or "
        "`callback`, its body, of durable timers and replays of their calls."
    )
    delivery: Delivery
    cancel_requested: bool = Field(description="The call is canceled once its running attempt has ended.")
    timer: CallTimerSchema | None
    last_attempt: AttemptSchema | None

    @classmethod
    def from_call(
        cls, call: CallDetails, timer: TimerEntry | None, last_attempt: HttpExecution | None
    ) -> ServiceCallSchema:
        return cls(
            **_read_common_members(call),
            request_spec=RequestSpecSchema.from_stored(call.request_spec),
            outcome=cast(OutcomeSchema | None, call.outcome_meta),  # validated here
            not_retried=explain_final_failure(call),
            idempotency_key=call.idempotency_key,
            retry_policy=RetryPolicySchema.from_stored(call.retry_policy),
            timeout_seconds=call.timeout_seconds,
            response_contract=ResponseContract(call.response_contract),
            delivery=Delivery(call.delivery),
            cancel_requested=bool(call.cancel_requested),
            timer=None if timer is None else CallTimerSchema.from_timer(timer),
            last_attempt=None if last_attempt is None else AttemptSchema.from_attempt(last_attempt),
        )

    @classmethod
    def from_command(
        cls,
        command: SubmitServiceCall,
        submitted_at: datetime,
        due_at: datetime,
        secret_headers: frozenset[str],
    ) -> ServiceCallSchema:
        """Return a call that has just been stored, as `from_call` would show it, without reading it again."""
        policy = command.retry_policy
        return cls(
            service_call_id=command.service_call_id,
            tenant_id=command.tenant_id,
            name=command.name,
            status=Status.SCHEDULED,
            namespace=command.namespace,
            timer_id=command.external_id,
            submitted_at=submitted_at,
            due_at=due_at,
            started_at=None,
            finished_at=None,
            tags=sorted(command.tags),
            favorite=FAVORITE in command.tags,
            correlation_id=command.correlation_id,
            replay_of=command.replay_of,
            attempts=0,
            request_spec=RequestSpecSchema.from_spec(command.request, secret_headers),
            outcome=None,
            not_retried=None,
            idempotency_key=command.idempotency_key,
            retry_policy=None if policy is None else RetryPolicySchema.from_policy(policy),
            timeout_seconds=command.timeout_seconds,
            response_contract=command.response_contract,
            delivery=command.delivery,
            cancel_requested=False,
            timer=CallTimerSchema(
                state=TimerState.SCHEDULED, due_at=due_at, registered_at=submitted_at, reached_at=None
            ),
            last_attempt=None,
        )


class CallReceiptSchema(ResponseModel):
    """The response to a key without the scope `read` that has changed a call."""

    service_call_id: uuid.UUID
    tenant_id: uuid.UUID


class ServiceCallOrReceiptSchema(RootModel[ServiceCallSchema | CallReceiptSchema]):
    """The call, or a receipt if the key does not have the scope `read`."""


CausationId = Annotated[uuid.UUID | None, Field(description="The event that led to this one.")]


class EventBaseSchema(ResponseModel):
    """The members that events have everywhere. `CausationId` is another one, at a place of its own in each."""

    id: uuid.UUID
    type: str
    seq: int = Field(description="Counts the events of one call, starting with 1.")
    occurred_at: UtcTime

    @classmethod
    def build(cls, event: OutboxEvent, **members: Any) -> Self:
        """Return an event with further members."""
        return cls(
            id=event.event_id,
            type=event.event_type,
            seq=event.aggregate_seq,
            occurred_at=event.created_at,
            **members,
        )


class EventSchema(EventBaseSchema):
    correlation_id: uuid.UUID
    causation_id: CausationId
    data: dict[str, Any]

    @classmethod
    def from_event(cls, event: OutboxEvent) -> EventSchema:
        return cls.build(
            event,
            correlation_id=event.correlation_id,
            causation_id=event.causation_id,
            data=event.event_payload,
        )


class BatchItemSchema(ResponseModel):
    status: int = Field(description="202 if the item was accepted, otherwise 400 or 409.")
    service_call_id: uuid.UUID | None = Field(description="Null if the item was refused.")
    location: str | None
    replayed: bool = Field(
        description="Whether an earlier request with the same idempotency key created this call."
    )
    code: str | None
    detail: str | None
    errors: list[FieldErrorSchema]
    existing_service_call_id: uuid.UUID | None = Field(
        description="Of `idempotency_conflict`, for a key with the scope `read`: the call that the idempotency key "
        "belongs to. Otherwise null."
    )


class BatchSchema(ResponseModel):
    items: list[BatchItemSchema] = Field(description="In the order of the request.")
    accepted: int
    refused: int = Field(description="The number of items that were refused, which can be all of them.")


class ServiceCallPageSchema(Page[ListedCallSchema]):
    pass


class AttemptPageSchema(Page[AttemptSchema]):
    pass


class EventPageSchema(Page[EventSchema]):
    pass

"""Durable timers: their requests and responses."""

from __future__ import annotations

import uuid
from typing import Annotated, Any

from pydantic import ConfigDict, Field, RootModel

from eventservice.api.schema.base import Page, RequestModel, ResponseModel, omittable
from eventservice.api.schema.calls import OutcomeSummarySchema, RetryPolicySchema
from eventservice.api.schema.submissions import DEFAULT_TIMEOUT, RetryPolicyInputSchema
from eventservice.api.schema.types import (
    DueTime,
    JsonBody,
    NamespaceName,
    OneLine,
    StoredLine,
    Timeout,
    Url,
    UtcTime,
)
from eventservice.tenants.models import DEFAULT_NAMESPACE
from execution.redaction import mask_query
from orchestration.queries.calls import CallSummary, CallView, TimerCall
from orchestration.states import Status

MAX_TIMER_ID_LENGTH = 255

TimerId = Annotated[OneLine, Field(max_length=MAX_TIMER_ID_LENGTH, examples=["trial-ends-42"])]


class TimerInputSchema(RequestModel):
    hints = {"timerId": "here it is `id`"}
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "trial-ends-42",
                    "executeAt": "2026-03-01T12:00:00Z",
                    "callbackUrl": "https://example.com/timers",
                    "payload": {"customer": 42},
                }
            ]
        }
    )

    namespace: NamespaceName | None = Field(
        default=None, description=f"A namespace of the tenant. Defaults to `{DEFAULT_NAMESPACE}`."
    )
    timer_id: TimerId = Field(
        alias="id", description="Your own id for the timer. It can be used again once the timer has ended."
    )
    execute_at: DueTime = Field(description="When to call back. A time in the past means now.")
    callback_url: Url = Field(description="Receives a POST. Its response says whether the timer is done.")
    payload: JsonBody = Field(
        default=None, description="Any JSON value. Sent with the callback as `payload`."
    )
    retry_policy: RetryPolicyInputSchema | None = Field(
        default=None,
        description="When to repeat a failed callback. Without a policy there is one attempt, and one more at each "
        "`nextExecuteAt` that a response asks for.",
    )
    callback_timeout_seconds: Timeout | None = Field(
        default=None, description=f"How long one callback may take. Defaults to {DEFAULT_TIMEOUT:.0f}."
    )

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace or DEFAULT_NAMESPACE, self.timer_id


class TimerKeySchema(RequestModel):
    hints = {"id": "here it is `timerId`"}
    model_config = ConfigDict(json_schema_extra={"examples": [{"timerId": "trial-ends-42"}]})

    namespace: NamespaceName | None = Field(
        default=None, description=f"A namespace of the tenant. Defaults to `{DEFAULT_NAMESPACE}`."
    )
    timer_id: Annotated[StoredLine, Field(max_length=MAX_TIMER_ID_LENGTH, examples=["trial-ends-42"])]

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace or DEFAULT_NAMESPACE, self.timer_id


class TimerChangesSchema(TimerKeySchema):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"timerId": "trial-ends-42", "executeAt": "2026-04-01T12:00:00Z"}]}
    )

    execute_at: DueTime = omittable()
    callback_url: Url = omittable()
    payload: JsonBody = omittable()
    retry_policy: RetryPolicyInputSchema | None = omittable()
    callback_timeout_seconds: Timeout | None = omittable()

    def to_command_fields(self) -> dict[str, Any]:
        """Return what changes, as arguments of the function that builds the command."""
        given = self.changes()
        fields: dict[str, Any] = {name: given[name] for name in ("callback_url", "payload") if name in given}
        if "execute_at" in given:
            fields["execute_at"] = fields["due_at"] = self.execute_at
        if "retry_policy" in given:
            fields["retry_policy"] = None if self.retry_policy is None else self.retry_policy.to_policy()
        if "callback_timeout_seconds" in given:
            fields["timeout_seconds"] = self.callback_timeout_seconds or DEFAULT_TIMEOUT
        return fields


# --- responses ----------------------------------------------------------------------------------------------------


class ListedTimerSchema(ResponseModel):
    namespace: str
    timer_id: str
    execute_at: UtcTime = Field(description="The time that the timer was set to.")
    due_at: UtcTime = Field(
        description="When the next callback is due. Of a timer that has ended: when the last was."
    )
    status: Status
    service_call_id: uuid.UUID = Field(description="The service call that carries out the timer.")
    attempts: int
    created_at: UtcTime
    finished_at: UtcTime | None
    outcome: OutcomeSummarySchema | None
    callback_url: str

    @classmethod
    def from_summary(cls, call: CallSummary) -> ListedTimerSchema:
        return cls(**_build_members(call, call.execute_at, call.url))


class TimerSchema(ListedTimerSchema):
    payload: Any
    retry_policy: RetryPolicySchema | None
    callback_timeout_seconds: float

    @classmethod
    def from_call(cls, call: TimerCall) -> TimerSchema:
        spec = call.request_spec
        return cls(
            **_build_members(call, spec["body"]["executeAt"], mask_query(spec["url"])),
            payload=spec["body"]["payload"],
            retry_policy=RetryPolicySchema.from_stored(call.retry_policy),
            callback_timeout_seconds=call.timeout_seconds,
        )


class TimerReceiptSchema(ResponseModel):
    """The response to a key without the scope `read` that has changed a timer."""

    namespace: str
    timer_id: str


class TimerOrReceiptSchema(RootModel[TimerSchema | TimerReceiptSchema]):
    """The timer, or a receipt if the key does not have the scope `read`."""


class TimerPageSchema(Page[ListedTimerSchema]):
    pass


def _build_members(call: CallView, execute_at: str | None, callback_url: str) -> dict[str, Any]:
    return {
        "namespace": call.namespace,
        "timer_id": call.external_id,
        "execute_at": execute_at,
        "due_at": call.due_at,
        "status": call.status,
        "service_call_id": call.service_call_id,
        "attempts": call.attempt,
        "created_at": call.submitted_at,
        "finished_at": call.finished_at,
        "outcome": OutcomeSummarySchema.from_stored(call.outcome_meta),
        "callback_url": callback_url,
    }

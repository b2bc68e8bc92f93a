"""Durable timers: what is set, and what is shown of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from eventservice.api.schema.base import RequestModel, omittable
from eventservice.api.schema.calls import DEFAULT_TIMEOUT, RetryPolicyInputSchema
from eventservice.api.schema.types import DueTime, JsonBody, NamespaceName, OneLine, Timeout, Url
from eventservice.tenants.models import DEFAULT_NAMESPACE

MAX_TIMER_ID_LENGTH = 255

TimerId = Annotated[OneLine, Field(max_length=MAX_TIMER_ID_LENGTH, examples=["trial-ends-42"])]


class TimerInputSchema(RequestModel):
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


class TimerKeySchema(RequestModel):
    namespace: NamespaceName | None = Field(
        default=None, description=f"A namespace of the tenant. Defaults to `{DEFAULT_NAMESPACE}`."
    )
    timer_id: TimerId

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace or DEFAULT_NAMESPACE, self.timer_id


class TimerChangesSchema(TimerKeySchema):
    execute_at: DueTime = omittable()
    callback_url: Url = omittable()
    payload: JsonBody = omittable()
    retry_policy: RetryPolicyInputSchema | None = omittable()
    callback_timeout_seconds: Timeout | None = omittable()

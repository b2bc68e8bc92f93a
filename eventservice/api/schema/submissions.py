"""Submissions of service calls, and the responses to them."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from django.conf import settings
from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from eventservice.api.problems import FieldError, InvalidRequest
from eventservice.api.schema.base import RequestModel, list_errors, omittable, rule_error, validate
from eventservice.api.schema.types import (
    IDEMPOTENCY_KEY_RULE,
    MAX_INTERVAL,
    WHOLE,
    CallContext,
    DescribedAs,
    DueTime,
    Duration,
    Headers,
    IdempotencyKey,
    JsonBody,
    Label,
    Method,
    NamespaceName,
    NewId,
    Timeout,
    Url,
    VisibleLine,
)
from eventservice.kernel.ids import new_id
from eventservice.tenants.models import DEFAULT_NAMESPACE
from orchestration.commands import IDEMPOTENCY_KEY, RequestSpec, SubmitServiceCall
from orchestration.outcome_rules import MAX_DELAY
from orchestration.retries import RetryPolicy
from orchestration.states import FAVORITE, MAX_TAGS, Delivery

MAX_NAME_LENGTH = 200
MAX_TAG_LENGTH = 64
MAX_ATTEMPTS = 100
DEFAULT_TIMEOUT = 30.0


# --- requests -----------------------------------------------------------------------------------------------------


def _check_tags(tags: list[str]) -> list[str]:
    """Count all tags but the favorite tag, so that the tags of a response can be sent back."""
    if len(tags) - (FAVORITE in tags) > MAX_TAGS:
        raise rule_error(f"must have at most {MAX_TAGS} items")
    return tags


Tag = Annotated[Label, Field(max_length=MAX_TAG_LENGTH)]
Tags = Annotated[
    list[Tag],
    Field(
        max_length=MAX_TAGS + 1,
        description=f"At most {MAX_TAGS} tags. The tag `{FAVORITE}` marks a favorite and does not count.",
    ),
    AfterValidator(_check_tags),
]
_TAG: TypeAdapter[str] = TypeAdapter(Tag)
CallName = Annotated[VisibleLine, Field(max_length=MAX_NAME_LENGTH, examples=["Remind customer 42"])]
DeliveryChoice = Annotated[Delivery, Field(strict=False)]
Interval = Annotated[float, Duration(0.001, MAX_INTERVAL)]


class RetryPolicyInputSchema(RequestModel):
    max_attempts: Annotated[int, Field(ge=1, le=MAX_ATTEMPTS), WHOLE] | None = Field(
        default=None, description=f"Attempts in all, the first included. Defaults to {MAX_ATTEMPTS}."
    )
    max_attempts_duration: Annotated[float, Duration(1, MAX_INTERVAL)] | None = Field(
        default=None, description="No attempt starts later than this after the first one."
    )
    initial_interval: Interval | None = Field(
        default=None, description="The longest pause before the second attempt. Defaults to `30s`."
    )
    backoff_multiplier: Annotated[float, Field(ge=1, le=100)] | None = Field(
        default=None, description="The factor from one pause to the next. Defaults to 2."
    )
    max_interval: Interval | None = Field(
        default=None,
        description="The longest pause between two attempts, the first pause included. Defaults to `1h`.",
    )

    def to_policy(self) -> RetryPolicy:
        given = {name: value for name, value in self if value is not None}
        # Whoever sends a policy wants retries: without a number they go on for as long as possible.
        return RetryPolicy(**{"max_attempts": MAX_ATTEMPTS, **given})


class RequestSpecInputSchema(RequestModel):
    method: Method
    url: Url
    headers: Headers | None = None
    body: JsonBody = Field(
        default=None,
        description="Any JSON value, sent as JSON. A string is sent as it is.",
        examples=[{"order": 42}],
    )

    def to_spec(self) -> RequestSpec:
        return RequestSpec(self.method, self.url, self.headers or {}, self.body)


_EXAMPLE: dict[str, JsonValue] = {
    "name": "Remind customer 42",
    "requestSpec": {
        "method": "POST",
        "url": "https://example.com/orders/42/reminder",
        "headers": {"X-Shop": "berlin"},
        "body": {"order": 42},
    },
    "delay": "10m",
    "tags": ["reminder"],
    "retryPolicy": {"maxAttempts": 5, "initialInterval": "30s"},
}


class SubmissionSchema(RequestModel):
    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    name: CallName
    request_spec: RequestSpecInputSchema
    due_at: DueTime | None = Field(
        default=None, description="When to send the request. A time in the past, or none, means now."
    )
    delay: Annotated[float, Duration(0, MAX_DELAY.total_seconds())] | None = Field(
        default=None, description="Instead of `dueAt`: how long after the submission to send the request."
    )
    service_call_id: NewId | None = Field(
        default=None, description="Your own id, a UUID of version 7. By default one is generated."
    )
    tags: Tags | None = None
    namespace: NamespaceName | None = Field(
        default=None, description=f"A namespace of the tenant. Defaults to `{DEFAULT_NAMESPACE}`."
    )
    idempotency_key: IdempotencyKey | None = Field(
        default=None, description="The same as the header `Idempotency-Key`."
    )
    retry_policy: RetryPolicyInputSchema | None = Field(
        default=None, description="When to repeat a failed attempt. By default a call has one attempt."
    )
    timeout_seconds: Timeout | None = Field(
        default=None, description=f"How long one attempt may take. Defaults to {DEFAULT_TIMEOUT:.0f}."
    )
    delivery: DeliveryChoice | None = Field(
        default=None,
        description="What happens to an attempt whose outcome is unknown, because the process that made it died: "
        "`at_least_once` (the default) repeats it, `at_most_once` fails the call, and retries a failed attempt only if "
        "its request was certainly not sent.",
    )

    @field_validator("delay")
    @classmethod
    def _exclude_due_time(cls, delay: float | None, info: ValidationInfo) -> float | None:
        # A due time that is invalid itself is absent from the data.
        if delay is not None and info.data.get("due_at", ...) is not None:
            raise rule_error("must not be given together with dueAt")
        return delay

    def to_command(self, context: CallContext) -> SubmitServiceCall:
        given_id = self.service_call_id
        return SubmitServiceCall(
            tenant_id=context.tenant.tenant_id,
            name=self.name,
            request=self.request_spec.to_spec(),
            due_at=self.due_at,
            delay=None if self.delay is None else timedelta(seconds=self.delay),
            service_call_id=given_id or new_id(),
            id_was_given=given_id is not None,
            tags=frozenset(self.tags or ()),
            namespace=self.namespace or DEFAULT_NAMESPACE,
            idempotency_key=context.idempotency_key or self.idempotency_key,
            correlation_id=context.correlation_id,
            retry_policy=None if self.retry_policy is None else self.retry_policy.to_policy(),
            timeout_seconds=DEFAULT_TIMEOUT if self.timeout_seconds is None else self.timeout_seconds,
            delivery=self.delivery or Delivery.AT_LEAST_ONCE,
        )


class BatchInputSchema(RequestModel):
    """Items are validated one by one: one that is invalid does not keep the others from being accepted."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"items": [_EXAMPLE]}]})

    items: Annotated[
        list[Annotated[Any, DescribedAs(SubmissionSchema)]],
        Field(min_length=1, max_length=settings.API_MAX_BATCH),
    ]
    atomic: bool | None = Field(
        default=None,
        description="Accept all items or none: a refusal is an error response, and nothing is stored. By default each item is "
        "accepted or refused on its own, and the response is 202 even if all are refused.",
    )


class CallChangesSchema(RequestModel):
    hints = {"delay": "give the time as `dueAt`"}
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "Remind customer 42 again", "tags": ["reminder"]}]}
    )

    name: CallName = omittable()
    tags: Tags = omittable(description=f"Replaces all tags but `{FAVORITE}`. At most {MAX_TAGS} tags.")
    due_at: DueTime = omittable(description="Only while the call is Scheduled. There is no `delay` here.")


def parse_submission(document: object, context: CallContext, at: str = "") -> SubmitServiceCall:
    """Return the command that a document asks for; raise InvalidRequest with all errors."""
    command, errors = validate_submission(document, context, at)
    if command is None:
        raise InvalidRequest(errors)
    return command


def validate_submission(
    document: object, context: CallContext, at: str = ""
) -> tuple[SubmitServiceCall | None, list[FieldError]]:
    """Return the command that a document asks for, or None and everything that is wrong."""
    submission, errors = validate(SubmissionSchema, document, context=context, at=at)
    errors += find_bad_key(context.idempotency_key)
    if submission is None or errors:
        return None, sorted(errors)
    return submission.to_command(context), []


def find_tag_error(tag: str) -> str | None:
    """Return the rule that a tag breaks, or None."""
    try:
        _TAG.validate_python(tag)
    except ValidationError as failure:
        return list_errors(failure)[0].detail
    return None


def find_bad_key(key: str | None) -> list[FieldError]:
    """Return the error of a header Idempotency-Key, if it has one."""
    if key is None or IDEMPOTENCY_KEY.fullmatch(key):
        return []
    return [FieldError("/headers/Idempotency-Key", f"must be {IDEMPOTENCY_KEY_RULE}")]

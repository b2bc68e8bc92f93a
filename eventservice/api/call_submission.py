"""From a JSON document to the command that it asks for: the one place that decides what may be submitted."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from eventservice.api.fields import MISSING, Fields, raise_if_invalid, wrong_text
from eventservice.api.parsers import MAX_DEPTH, is_storable, is_too_deep
from eventservice.api.problems import FieldError
from eventservice.db.bulk import to_json
from eventservice.db.now import db_now
from eventservice.kernel.errors import Invalid
from eventservice.kernel.ids import new_id
from eventservice.tenants.directory import TenantProfile
from eventservice.tenants.models import DEFAULT_NAMESPACE
from execution.outcome import METHODS
from execution.url_rules import BadHeader, BadUrl, check_headers, parse_target
from orchestration.commands import IDEMPOTENCY_KEY, RequestSpec, SubmitServiceCall
from orchestration.outcome_rules import MAX_DELAY
from orchestration.retries import RetryPolicy
from orchestration.states import FAVORITE, MAX_TAGS, Delivery

LONGEST_TAG = 64
LONGEST_NAME = 200
MOST_HEADERS = 64
DEFAULT_TIMEOUT = 30.0
LONGEST_INTERVAL = 30 * 86_400.0
MOST_ATTEMPTS = 100

KEY_RULE = "1 to 255 visible ASCII characters"


@dataclass(frozen=True, slots=True)
class Asking:
    """What a submission takes from around it: who asks, and under which correlation."""

    tenant: TenantProfile
    correlation_id: uuid.UUID
    idempotency_key: str | None = None  # of the header


def parse_submission(document: Any, asking: Asking, at: str = "") -> SubmitServiceCall:
    """Raises Refusal with everything that is wrong."""
    faults: list[FieldError] = []
    command = read_submission(document, asking, faults, at)
    raise_if_invalid(faults)
    assert command is not None  # noqa: S101 (without a fault there is one)
    return command


def read_submission(
    document: Any, asking: Asking, faults: list[FieldError], at: str = ""
) -> SubmitServiceCall | None:
    """None when there are faults."""
    if not isinstance(document, dict):
        faults.append(FieldError(at, "must be an object"))
        return None
    before = len(faults)
    fields = Fields(document, faults, at)
    due_at, delay = _when(fields)
    given_id = fields.identifier("serviceCallId", None)
    command = SubmitServiceCall(
        tenant_id=asking.tenant.tenant_id,
        name=fields.text("name", most=LONGEST_NAME),
        request=_request(fields),
        due_at=due_at,
        delay=delay,
        service_call_id=given_id or new_id(),
        id_was_given=given_id is not None,
        tags=read_tags(fields),
        namespace=read_namespace(fields, asking.tenant),
        idempotency_key=_idempotency_key(fields, asking.idempotency_key),
        correlation_id=asking.correlation_id,
        retry_policy=read_retry_policy(fields),
        timeout_seconds=read_timeout(fields, "timeoutSeconds"),
        delivery=Delivery(fields.choice("delivery", Delivery.values, Delivery.AT_LEAST_ONCE.value)),
    )
    fields.no_others()
    return command if len(faults) == before else None


def _when(fields: Fields) -> tuple[datetime | None, timedelta | None]:
    due_at = read_due(fields, "dueAt")
    seconds = fields.duration("delay", None, most=MAX_DELAY.total_seconds())
    if fields.value("dueAt", None) is not None and fields.value("delay", None) is not None:
        fields.fault("delay", "must not be given together with dueAt")
    return due_at, None if seconds is None else timedelta(seconds=seconds)


def read_due(fields: Fields, name: str, default: Any = None) -> Any:
    due_at = fields.instant(name, default)
    if isinstance(due_at, datetime) and due_at > db_now() + MAX_DELAY:
        fields.fault(name, "must be within ten years from now")
    return due_at


# --- the request ----------------------------------------------------------------------------------------------


def _request(fields: Fields) -> RequestSpec:
    spec = fields.object("requestSpec")
    if spec is MISSING:
        return RequestSpec("GET", "")
    request = RequestSpec(
        method=spec.choice("method", METHODS),
        url=read_url(spec, "url"),
        headers=_headers(spec),
        body=read_body(spec, "body"),
    )
    spec.no_others()
    return request


def read_url(fields: Fields, name: str) -> Any:
    url = fields.text(name, most=2048)
    if url is not MISSING:
        try:
            parse_target(url)
        except BadUrl as wrong:
            fields.fault(name, f"is refused: {wrong}")
    return url


def _headers(spec: Fields) -> dict[str, str]:
    headers = spec.object("headers", None)
    if headers is None or headers is MISSING:
        return {}
    given: Mapping[str, Any] = spec.value("headers")
    if len(given) > MOST_HEADERS:
        spec.fault("headers", f"must be at most {MOST_HEADERS}")
        return {}
    texts: dict[str, str] = {}
    for name, value in given.items():
        wrong = _wrong_header(name, value, texts)
        if wrong:
            headers.fault(name[:200], wrong)
        else:
            texts[name] = value
    return _together(spec, texts)


def _wrong_header(name: str, value: Any, others: Collection[str]) -> str | None:
    if not isinstance(value, str):
        return "must be a text"
    try:
        check_headers([(name, value)])
    except BadHeader as wrong:
        return f"is refused: {wrong}"
    if len(others) and name.lower() in {other.lower() for other in others}:
        return "is there already, in another spelling"
    return None


def _together(spec: Fields, headers: dict[str, str]) -> dict[str, str]:
    try:
        check_headers(headers.items())
    except BadHeader as wrong:
        spec.fault("headers", f"are refused: {wrong}")
    return headers


def read_body(fields: Fields, name: str) -> Any:
    """Anything that JSON can say; a text is sent as it is."""
    body = fields.value(name, None)
    if body is None or isinstance(body, int | float):
        return body
    if is_too_deep(body, MAX_DEPTH - 2):
        fields.fault(name, f"must not be nested in more than {MAX_DEPTH - 2} levels")
        return None
    size = len((body if isinstance(body, str) else to_json(body)).encode())
    if size > settings.API_MAX_BODY_BYTES:
        fields.fault(name, f"must not be larger than {settings.API_MAX_BODY_BYTES} bytes")
    return body


# --- the rest -------------------------------------------------------------------------------------------------


def read_tags(fields: Fields, *, required: bool = False) -> frozenset[str]:
    given = fields.value("tags", None)
    # What GET shows may be sent back: the favourite is among the tags, and not counted with them.
    most = MAX_TAGS + (isinstance(given, list) and FAVORITE in given)
    tags = fields.texts("tags", most=most, longest=LONGEST_TAG, required=required)
    return frozenset(filter(_is_text, tags))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def wrong_tag(tag: str) -> str | None:
    return wrong_text(tag, LONGEST_TAG) or (None if is_storable(tag) else "must be a text")


def read_namespace(fields: Fields, tenant: TenantProfile, default: Any = DEFAULT_NAMESPACE) -> str:
    namespace = fields.text("namespace", default, most=64)
    if namespace is MISSING:
        return DEFAULT_NAMESPACE
    try:
        tenant.get_num_shards(namespace)
    except Invalid:
        fields.fault("namespace", "must be a namespace of this tenant: this one does not exist")
    return str(namespace)


def _idempotency_key(fields: Fields, of_header: str | None) -> str | None:
    key = fields.matching("idempotencyKey", IDEMPOTENCY_KEY, KEY_RULE, None)
    if of_header is None:
        return key  # type: ignore[no-any-return]
    if not IDEMPOTENCY_KEY.fullmatch(of_header):
        fields.faults.append(FieldError("/headers/Idempotency-Key", f"must be {KEY_RULE}"))
    elif key not in (None, of_header):
        fields.fault("idempotencyKey", "must be the same as in the header Idempotency-Key")
    return of_header


def read_timeout(fields: Fields, name: str, default: Any = DEFAULT_TIMEOUT) -> Any:
    return fields.number(name, default, least=0.1, most=float(settings.API_MAX_TIMEOUT_SECONDS))


def read_retry_policy(fields: Fields, default: Any = None) -> Any:
    policy = fields.object("retryPolicy", default)
    if policy is MISSING or policy is default:
        return default
    usual = RetryPolicy(max_attempts=MOST_ATTEMPTS)
    # Whoever gives a policy wants retries: without a number they go on as long as there may be any.
    made = RetryPolicy(
        max_attempts=policy.integer("maxAttempts", usual.max_attempts, least=1, most=MOST_ATTEMPTS),
        max_attempts_duration=policy.duration("maxAttemptsDuration", None, least=1, most=LONGEST_INTERVAL),
        initial_interval=policy.duration(
            "initialInterval", usual.initial_interval, least=0.001, most=LONGEST_INTERVAL
        ),
        backoff_multiplier=policy.number("backoffMultiplier", usual.backoff_multiplier, least=1, most=100),
        max_interval=policy.duration("maxInterval", usual.max_interval, least=0.001, most=LONGEST_INTERVAL),
    )
    policy.no_others()
    return made


__all__ = [
    "Asking",
    "parse_submission",
    "read_body",
    "read_due",
    "read_namespace",
    "read_retry_policy",
    "read_submission",
    "read_tags",
    "read_timeout",
    "read_url",
    "wrong_tag",
]

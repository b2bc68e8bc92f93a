"""The types of members that several documents share."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from django.conf import settings
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from eventservice.api.formats import format_duration, parse_duration, parse_instant, parse_uuid
from eventservice.api.parsers import MAX_DEPTH, is_too_deep
from eventservice.api.schema.base import pattern, raise_for_members, rule_error
from eventservice.db.bulk import to_json
from eventservice.db.now import db_now, to_rfc3339
from eventservice.kernel.errors import Invalid
from eventservice.kernel.ids import is_uuid7
from eventservice.kernel.text import CONTROLS, INVISIBLE, JOINERS
from eventservice.kernel.ttl_cache import TTLCache
from eventservice.tenants.directory import TenantProfile
from eventservice.tenants.models import MAX_NAMESPACE_LENGTH, namespace_rule
from execution.addresses import AddressPolicy
from execution.outcome import METHODS
from execution.redaction import MASK
from execution.url_rules import MAX_HEADERS, BadHeader, BadUrl, check_headers, parse_target
from orchestration.commands import IDEMPOTENCY_KEY
from orchestration.outcome_rules import MAX_DELAY

_UNSEEN = CONTROLS + INVISIBLE
_UNSEEN_NAMES = "control, bidirectional and zero-width characters"
_SHORT = r"(\d{1,9}d)?(\d{1,9}h)?(\d{1,9}m)?(\d{1,12}(\.\d{1,6})?s)?"
_SECONDS = r"\d{1,12}(\.\d{1,6})?S"
_ISO_TIME = rf"T(\d{{1,9}}H(\d{{1,9}}M)?({_SECONDS})?|\d{{1,9}}M({_SECONDS})?|{_SECONDS})"
_ISO = rf"P(\d{{1,9}}W)?(\d{{1,9}}D)?({_ISO_TIME})?"
DURATION_PATTERN = f"^({_SHORT}|{_ISO})$".replace(r"\d", "[0-9]")
UUID7_PATTERN = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-7[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$"
# How OpenAPI describes what is validated by execution.url_rules.
HOST = r"[A-Za-z0-9_.:\[\]-]+"
_URL = rf"^[hH][tT][tT][pP][sS]?://{HOST}([/?#][\x21-\x5b\x5d-\x7e]*)?$"
HEADER_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_HEADER_VALUE = r"^[\t\x20-\x7e\x80-\xff]*$"
DURATION_RULE = (
    'must be a duration: days, hours, minutes and seconds, such as "1d12h" or "90s", or in the form of ISO 8601, such as '
    '"PT90S" or, only there with weeks, "P2W"'
)
IDEMPOTENCY_KEY_RULE = "1 to 255 visible ASCII characters"
MASKED_RULE = f"contains a masked secret ({MASK}): enter its value again"
MAX_INTERVAL = 30 * 86_400.0

OneLine = Annotated[
    str,
    Field(min_length=1),
    pattern(rf"^[^{_UNSEEN}]*$", f"one line without {_UNSEEN_NAMES}"),
]
VisibleLine = Annotated[
    str,
    Field(min_length=1),
    pattern(
        rf"^[^{_UNSEEN}]*[^\s{_UNSEEN}{JOINERS}][^{_UNSEEN}]*$",
        f"one line without {_UNSEEN_NAMES}, and not only spaces",
    ),
]
# What may have been stored before invisible characters were refused, and can still be looked up.
StoredLine = Annotated[
    str, Field(min_length=1), pattern(rf"^[^{CONTROLS}]*$", "one line without control characters")
]
Label = Annotated[
    str,
    Field(min_length=1),
    pattern(
        rf"^[^\s{_UNSEEN}{JOINERS}]([^{_UNSEEN}{JOINERS}]*[^\s{_UNSEEN}{JOINERS}])?$",
        f"one line without {_UNSEEN_NAMES}, and without spaces at its ends",
    ),
]


# --- instants, durations and ids ----------------------------------------------------------------------------------


def _parse_instant(value: object) -> datetime:
    moment = parse_instant(value) if isinstance(value, str) else None
    if moment is None:
        raise rule_error('must be a time with an offset, such as "2026-03-01T12:00:00Z"')
    return moment


def _parse_uuid(value: object) -> uuid.UUID:
    found = parse_uuid(value) if isinstance(value, str) else None
    if found is None:
        raise rule_error("must be a UUID")
    return found


def _parse_uuid7(value: object) -> uuid.UUID:
    found = _parse_uuid(value)
    if not is_uuid7(found):
        raise rule_error("must be a UUID of version 7")
    return found


# The database's clock as it was read in the last minute.
_recent_now: TTLCache[None, datetime] = TTLCache(60.0)


def _check_due(moment: datetime) -> datetime:
    # What was within ten years a minute ago still is. So few due times need a query of their own, 11 µs each on SQLite.
    if moment > _recent_now.get(None, db_now) + MAX_DELAY and moment > db_now() + MAX_DELAY:
        raise rule_error("must be within ten years from now")
    return moment


Instant = Annotated[
    datetime,
    PlainValidator(_parse_instant),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2026-03-01T12:00:00Z"]}),
]
UtcTime = Annotated[
    datetime,
    PlainSerializer(to_rfc3339, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
DueTime = Annotated[Instant, AfterValidator(_check_due)]
Id = Annotated[uuid.UUID, PlainValidator(_parse_uuid), WithJsonSchema({"type": "string", "format": "uuid"})]
# The id of something new. Ids of older rows may be of any version.
NewId = Annotated[
    uuid.UUID, PlainValidator(_parse_uuid7), WithJsonSchema({"type": "string", "pattern": UUID7_PATTERN})
]


@dataclass(frozen=True, slots=True)
class Duration:
    """Annotates a float: a duration in words, such as "90s", "1d12h" or "PT90S", read as seconds."""

    minimum: float
    maximum: float
    clamped: bool = False  # longer ones are taken for the maximum

    def parse(self, value: object) -> float:
        seconds = parse_duration(value) if isinstance(value, str) else None
        if seconds is None:
            raise rule_error(DURATION_RULE)
        if self.clamped:
            seconds = min(seconds, self.maximum)
        if not self.minimum <= seconds <= self.maximum:
            raise rule_error(f"must be from {self._format_range()}")
        return seconds

    def _format_range(self) -> str:
        return f"{format_duration(self.minimum)} to {format_duration(self.maximum)}"

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.parse)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        about = f"A duration from {self._format_range()}, such as `90s`, `5m`, `1d12h` or `PT90S`."
        if self.clamped:
            about += " A longer one is shortened."
        return {"type": "string", "minLength": 2, "pattern": DURATION_PATTERN, "description": about}


@dataclass(frozen=True, slots=True)
class DescribedAs:
    """Annotates a value that is validated later: OpenAPI describes it as this model."""

    model: type[BaseModel]

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(self.model.__pydantic_core_schema__)


@dataclass(frozen=True, slots=True)
class DescribedPattern:
    """Annotates a string whose validator is more than a pattern: OpenAPI describes it by this one."""

    regex: str

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "pattern": self.regex}


def _to_whole(value: object) -> object:
    # In JSON, 5.0 is a whole number.
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_to_whole)


# --- requests -----------------------------------------------------------------------------------------------------


def check_url(url: str) -> str:
    """Refuse a URL to which nothing would ever be sent."""
    if MASK in url:
        raise rule_error(MASKED_RULE)
    try:
        refusal = AddressPolicy.from_settings().explain_refusal(parse_target(url).origin)
    except BadUrl as wrong:
        refusal = str(wrong)
    if refusal:
        raise rule_error(f"is refused: {refusal}")
    return url


def _parse_headers(headers: object) -> dict[str, str]:
    if not isinstance(headers, dict):
        raise rule_error("must be an object")
    if len(headers) > MAX_HEADERS:
        raise rule_error(f"must have at most {MAX_HEADERS} members")
    if rules := _find_bad_headers(headers):
        raise_for_members(rules)
    try:
        check_headers(headers.items())
    except BadHeader as wrong:
        raise rule_error(f"are refused: {wrong}") from None
    return headers


def _find_bad_headers(headers: dict[str, object]) -> dict[str | int, str]:
    rules: dict[str | int, str] = {}
    seen: set[str] = set()
    for name, value in headers.items():
        if not isinstance(value, str):
            rules[name] = "must be a string"
            continue
        if MASK in value:
            rules[name] = MASKED_RULE
            continue
        if name.lower() == "idempotency-key" and not value.strip():
            # It would replace the id of the call, by which the receiver recognizes repeats.
            rules[name] = "is refused: it is empty. Omit it, and the id of the call is sent"
            continue
        try:
            check_headers([(name, value)])
        except BadHeader as wrong:
            rules[name] = f"is refused: {wrong}"
        else:
            if name.lower() in seen:
                rules[name] = "duplicates another header (names are case-insensitive)"
            seen.add(name.lower())
    return rules


def _check_body(body: object) -> object:
    if body is None or isinstance(body, int | float):
        return body
    if is_too_deep(body, MAX_DEPTH - 2):
        raise rule_error(f"must not be nested more than {MAX_DEPTH - 2} levels deep")
    size = len((body if isinstance(body, str) else to_json(body)).encode())
    if size > settings.API_MAX_BODY_BYTES:
        raise rule_error(f"must be at most {settings.API_MAX_BODY_BYTES} bytes")
    return body


Method = Literal[METHODS]  # type: ignore[valid-type]  # mypy wants them written out
Url = Annotated[
    OneLine,
    Field(max_length=2048, examples=["https://example.com/orders/42/reminder"]),
    DescribedPattern(_URL),
    AfterValidator(check_url),
]
Headers = Annotated[
    dict[str, str],
    PlainValidator(_parse_headers),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": f"^{HEADER_NAME}$"},
            "additionalProperties": {"type": "string", "pattern": _HEADER_VALUE},
            "maxProperties": MAX_HEADERS,
        }
    ),
]
JsonBody = Annotated[Any, AfterValidator(_check_body)]
Timeout = Annotated[float, Field(ge=0.1, le=float(settings.API_MAX_TIMEOUT_SECONDS))]


# --- what depends on the tenant -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallContext:
    """The validation context of a model that describes calls.

    The idempotency key is that of the header.
    """

    tenant: TenantProfile
    correlation_id: uuid.UUID
    idempotency_key: str | None = None


def _check_namespace(name: str, info: ValidationInfo) -> str:
    context: CallContext = info.context  # type: ignore[assignment]  # always given: see CallContext
    try:
        context.tenant.get_num_shards(name)
    except Invalid:
        raise rule_error("must be a namespace of this tenant: this one does not exist") from None
    return name


def _check_idempotency_key(key: str, info: ValidationInfo) -> str:
    context: CallContext = info.context  # type: ignore[assignment]
    if context.idempotency_key not in (None, key):
        raise rule_error("must be the same as in the header Idempotency-Key")
    return key


NamespaceName = Annotated[
    OneLine,
    Field(max_length=MAX_NAMESPACE_LENGTH),
    DescribedPattern(namespace_rule.regex.pattern.replace(r"\Z", "$")),
    AfterValidator(_check_namespace),
]
IdempotencyKey = Annotated[
    str,
    pattern(f"^{IDEMPOTENCY_KEY.pattern}$", IDEMPOTENCY_KEY_RULE),
    AfterValidator(_check_idempotency_key),
]

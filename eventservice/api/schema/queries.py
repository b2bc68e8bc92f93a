"""Query parameters, declared like documents: the model validates them and describes them in OpenAPI."""

from __future__ import annotations

import hashlib
import re
import uuid
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_origin

from django.conf import settings
from django.http import QueryDict
from pydantic import AfterValidator, BeforeValidator, Field

from eventservice.api.formats import format_duration
from eventservice.api.problems import FieldError, raise_for_errors
from eventservice.api.schema.base import RequestModel, pattern, rule_error, validate
from eventservice.api.schema.types import Duration, Id, Instant, NamespaceName
from execution.url_rules import MAX_PORT, BadUrl, parse_host, split_port
from orchestration.queries.call_lists import CallFilter, Order
from orchestration.states import Status

Q = TypeVar("Q", bound="QueryModel")

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
MAX_TRACE_LIMIT = 50
MAX_TEXT_LENGTH = 2000
MAX_TAGS_SEARCHED = 20
DEFAULT_WINDOW = 900.0
MAX_WINDOW = 86_400.0
SORTS = {
    "submittedAt": Order("submitted_at", descending=False),
    "-submittedAt": Order("submitted_at"),
    "dueAt": Order("due_at", descending=False),
    "-dueAt": Order("due_at"),
}
HOST_RULE = "must be a host name or address, with or without a port, such as example.com:8443"

_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


class QueryModel(RequestModel):
    """The query of a request. A member that is a list may be given several times."""


def parse_query(model: type[Q], parameters: QueryDict, *, context: object = None) -> Q:
    """Return the query as its model; raise InvalidRequest with all errors."""
    document: dict[str, Any] = {}
    errors: list[FieldError] = []
    for name, values in parameters.lists():
        if name in _list_names(model):
            document[name] = values
        elif len(values) > 1:
            errors.append(FieldError(f"/query/{name[:200]}", "must be given once"))
        else:
            document[name] = values[0]
    query, wrong = validate(model, document, context=context, at="/query")
    # A pointer to one of several values is of no use: `?status=a&status=b` has no indexes.
    errors += [FieldError("/".join(pointer.split("/")[:3]), rule) for pointer, rule in wrong]
    raise_for_errors(errors)
    assert query is not None  # noqa: S101 (there are no errors)
    return query


@cache
def _list_names(model: type[QueryModel]) -> frozenset[str]:
    return frozenset(
        str(field.alias) for field in model.model_fields.values() if get_origin(field.annotation) is list
    )


def _parse_number(value: object) -> object:
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        raise rule_error("must be a whole number")
    return int(value)


def _restore_plus(value: object) -> object:
    # In a query, a `+` that is not percent-encoded arrives as a space.
    return value.replace(" ", "+") if isinstance(value, str) else value


def _check_window(seconds: float) -> float:
    if not seconds:
        raise rule_error("must be longer than 0s")
    return seconds


def _check_host(text: str) -> str:
    host, port = split_port(text)
    try:
        parse_host(host)
    except BadUrl:
        raise rule_error(HOST_RULE) from None
    if port is not None and port > MAX_PORT:
        raise rule_error(HOST_RULE)
    return text


Text = Annotated[
    str,
    Field(min_length=1, max_length=MAX_TEXT_LENGTH),
    pattern(r"^[^\x00]*$", "a string without NUL characters"),
]
QueryInstant = Annotated[Instant, BeforeValidator(_restore_plus)]


class EmptyQuery(QueryModel):
    pass


class PageQuery(QueryModel):
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT), BeforeValidator(_parse_number)] = Field(
        default=DEFAULT_LIMIT, description="The maximum number of items on a page."
    )
    cursor: Text | None = Field(
        default=None,
        description="The `nextCursor` of the previous page. The other parameters must be the same as for that page.",
    )


class TraceQuery(PageQuery):
    """Pages of a trace are shorter than others: each of its calls has attempts and events."""

    limit: Annotated[int, Field(ge=1, le=MAX_TRACE_LIMIT), BeforeValidator(_parse_number)] = Field(
        default=MAX_TRACE_LIMIT, description="The maximum number of calls on a page."
    )


class TimerListQuery(PageQuery):
    status: list[Annotated[Status, Field(strict=False)]] = Field(
        default=[], description="Any of these statuses. Repeat the parameter for several."
    )
    due_from: QueryInstant | None = Field(
        default=None, alias="from", description="Due at this time or later."
    )
    due_to: QueryInstant | None = Field(default=None, alias="to", description="Due before this time.")
    namespace: NamespaceName | None = None
    sort: Literal[tuple(SORTS)] = "dueAt"  # type: ignore[valid-type]

    @property
    def order(self) -> Order:
        return SORTS[self.sort]

    @property
    def may_search_long(self) -> bool:
        return False

    @property
    def is_expensive(self) -> bool:
        """Whether finding a page may take long, because no index and no limit serves it."""
        return False

    def to_filter(self, tenant_id: uuid.UUID) -> CallFilter:
        return CallFilter(
            tenant_id,
            timers=True,
            statuses=frozenset(status.value for status in self.status),
            due_from=self.due_from,
            due_to=self.due_to,
            namespace=self.namespace,
        )

    def list_id(self, tenant_id: uuid.UUID) -> str:
        """Return a name of this list: its filter and its order. A cursor is valid for one list only."""
        wanted = self.to_filter(tenant_id)
        values = [getattr(wanted, name) for name in CallFilter.__slots__]
        stable = [sorted(value) if isinstance(value, frozenset) else str(value) for value in values]
        return hashlib.sha256(repr((stable, self.sort)).encode()).hexdigest()[:16]


class CallListQuery(TimerListQuery):
    sort: Literal[tuple(SORTS)] = "-submittedAt"  # type: ignore[valid-type]
    tag: list[Text] = Field(
        default=[],
        max_length=MAX_TAGS_SEARCHED,
        description="All of these tags, or any: see `tagMode`. Repeat the parameter for several.",
    )
    tag_mode: Literal["all", "any"] = "all"
    submitted_from: QueryInstant | None = Field(default=None, description="Submitted at this time or later.")
    submitted_to: QueryInstant | None = Field(default=None, description="Submitted before this time.")
    name: Text | None = Field(default=None, description="The whole name, case-sensitive.")
    host: Annotated[Text, AfterValidator(_check_host)] | None = Field(
        default=None,
        description="The host that is called, or the host with a port, such as `example.com:8443`.",
    )
    correlation_id: Id | None = Field(default=None, description="Calls that one request submitted.")
    replay_of: Id | None = Field(default=None, description="The replays of this call.")
    retrying: Literal["false", "true"] = Field(
        default="false",
        description="With `true`, only calls that wait for another attempt: their status is Scheduled, and an attempt has "
        "failed or was interrupted.",
    )

    @property
    def may_search_long(self) -> bool:
        """Whether a search stops after a number of calls, and its page may have fewer calls than the limit."""
        return len(set(self.tag)) > 1 or self.retrying == "true" or self._split_host()[1] is not None

    @property
    def is_expensive(self) -> bool:
        in_order_of_tag = self.order.column == "submitted_at" and not (
            self.submitted_from or self.submitted_to
        )
        return len(set(self.tag)) > 1 and self.tag_mode == "all" and not in_order_of_tag

    def _split_host(self) -> tuple[str | None, int | None]:
        if self.host is None:
            return None, None
        host, port = split_port(self.host)
        return parse_host(host), port

    def to_filter(self, tenant_id: uuid.UUID) -> CallFilter:
        host, port = self._split_host()
        return CallFilter(
            tenant_id,
            statuses=frozenset(status.value for status in self.status),
            tags=frozenset(self.tag),
            any_tag=self.tag_mode == "any",
            due_from=self.due_from,
            due_to=self.due_to,
            submitted_from=self.submitted_from,
            submitted_to=self.submitted_to,
            name=self.name,
            host=host,
            port=port,
            namespace=self.namespace,
            correlation_id=self.correlation_id,
            replay_of=self.replay_of,
            retrying=self.retrying == "true",
        )


class WaitQuery(QueryModel):
    wait: Annotated[float, Duration(0, float(settings.API_MAX_WAIT_SECONDS), clamped=True)] | None = None


class StatsQuery(QueryModel):
    tenant_id: Id | None = Field(default=None, description="By default all tenants, or that of the key.")
    window: Annotated[float, Duration(0, MAX_WINDOW, clamped=True), AfterValidator(_check_window)] = Field(
        default_factory=lambda: DEFAULT_WINDOW,
        description=f"Defaults to `{format_duration(DEFAULT_WINDOW)}`.",
    )

"""The query of a list of calls. The whole state of a list is in its URL, which this module parses and builds."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.http import QueryDict
from django.urls import reverse

from eventservice.api.pagination import make_cursor
from eventservice.api.problems import FieldError, raise_for_errors
from eventservice.api.schema.queries import SORTS
from eventservice.console.base.query import Query, drop_empty_params
from eventservice.console.base.tenant_select import list_tenant_options
from execution.url_rules import split_port
from orchestration.queries.call_lists import CallFilter, CallListPage, Order, Position, list_calls
from orchestration.queries.tenants_with_calls import list_tenants_with_calls, list_tenants_with_id
from orchestration.states import FAVORITE, MAX_TAGS, Status

# How many calls of a tenant a search looks at for one page: a prefix may have only old calls.
MAX_WALKED = 50_000
# Each tenant has an index of its own, so a list of several tenants is merged from as many reads.
MAX_TENANTS = 50
MAX_TENANTS_NAMED = 20
DEFAULT_SORT = "-submittedAt"
DATE_FIELDS = ("due", "submitted")
NON_FILTER_PARAMETERS = frozenset({"sort", "limit", "cursor", "by", "zone"})
# Stands in the filter until it is applied to each listed tenant.
NO_TENANT = uuid.UUID(int=0)


class IdNotFound(Exception):
    """No single call or correlation has the ID. The message is for the operator."""


@dataclass(frozen=True, slots=True)
class PageCursor:
    """The edge at which a page other than the first begins, or ends if `backward`."""

    backward: bool
    offset: int  # how many calls come before the edge
    position: Position


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The parameters of a list of calls. `errors` maps invalid parameters to the rules that they break."""

    tenants: Mapping[uuid.UUID, str]  # the tenants that can be chosen, by name
    tenant: uuid.UUID | None
    lookup_id: uuid.UUID | None  # of a call or of a correlation
    filter: CallFilter
    sort: str
    limit: int
    cursor: PageCursor | None
    errors: Mapping[str, str]
    parameters: QueryDict  # without empty ones
    listed: Mapping[uuid.UUID, str]  # the tenants whose calls are listed; one more than allowed if too many

    @property
    def has_too_many_tenants(self) -> bool:
        return len(self.listed) > MAX_TENANTS

    @property
    def lists_some_tenants(self) -> bool:
        """Whether there are so many tenants that only those with matching calls are listed."""
        return self.tenant is None and len(self.tenants) > MAX_TENANTS

    @property
    def filters(self) -> list[CallFilter]:
        """One filter for each listed tenant."""
        return [replace(self.filter, tenant_id=tenant_id) for tenant_id in self.listed]

    @property
    def order(self) -> Order:
        return SORTS[self.sort]

    @property
    def begin(self) -> datetime | None:
        return self.filter.due_from or self.filter.submitted_from

    @property
    def end(self) -> datetime | None:
        return self.filter.due_to or self.filter.submitted_to

    @property
    def is_filtered(self) -> bool:
        return any(name not in NON_FILTER_PARAMETERS for name in self.parameters)

    def raise_if_invalid(self) -> None:
        """Raise InvalidRequest if this query does not describe a list of calls."""
        errors = [FieldError(f"/query/{name}", rule) for name, rule in self.errors.items()]
        if self.lookup_id and not errors:
            errors = [FieldError("/query/id", "is a lookup, not a filter")]
        if not errors and self.has_too_many_tenants:
            errors = [FieldError("/query/tenant", "is required: there are too many tenants for one list")]
        raise_for_errors(errors)

    def fetch_page(self) -> CallListPage:
        if self.cursor is None:
            return list_calls(self.filters, self.order, self.limit, max_walked=MAX_WALKED)
        edge = {"before" if self.cursor.backward else "after": self.cursor.position}
        return list_calls(self.filters, self.order, self.limit, max_walked=MAX_WALKED, **edge)

    # --- URLs -----------------------------------------------------------------------------------------------------

    def query_string(self, **changes: str | Sequence[str] | None) -> str:
        """Return the query string of the first page of this list with some parameters changed or removed."""
        parameters = self.parameters.copy()
        for name, value in {"cursor": None, **changes}.items():
            values = [value] if isinstance(value, str) else list(value or ())
            parameters.setlist(name, values)
        return parameters.urlencode()

    def url(self, **changes: str | Sequence[str] | None) -> str:
        query = self.query_string(**changes)
        return reverse("console:calls") + (f"?{query}" if query else "")

    def page_url(self, page: PageCursor) -> str:
        values = [page.backward, page.offset, *page.position]
        return self.url(cursor=make_cursor(_build_list_id(self.parameters), values))

    # --- lookup by ID ---------------------------------------------------------------------------------------------

    def resolve_id(self, lookup_id: uuid.UUID) -> str:
        """Return the URL of the call with this ID, or of the trace with this correlation ID.

        If several tenants have the correlation ID, that is the list of their calls. Of the filters, only the tenant applies. Raise IdNotFound if nothing has the ID, or if several calls have it.
        """
        owners = list_tenants_with_id("service_call_id", lookup_id, self.tenant, MAX_TENANTS_NAMED)
        if len(owners) > 1:  # clients may choose the IDs of their calls
            names = ", ".join(owners.values())
            raise IdNotFound(f"Several tenants have a call with this ID: choose one of {names}.")
        for tenant_id in owners:
            return reverse("console:call", args=[tenant_id, lookup_id])
        owners = list_tenants_with_id("correlation_id", lookup_id, self.tenant, 2)
        if len(owners) > 1:
            return self.url(id=None, correlationId=str(lookup_id))
        for tenant_id in owners:
            return reverse("console:trace", args=[tenant_id, lookup_id])
        scope = f" of {self.tenants[self.tenant]}" if self.tenant else ""
        raise IdNotFound(f"No call{scope} has this ID or correlation ID.")


def parse_list_query(given: QueryDict) -> ListQuery:
    """Return the query. Invalid parameters do not raise: the list shows them as errors at their fields."""
    parameters = drop_empty_params(given)
    errors: list[FieldError] = []
    query = Query(parameters, errors)
    tenants, tenant = parse_tenants(query)
    if tenant is not None and tenant not in tenants:
        query.add_error("tenant", "does not exist")
    parsed = ListQuery(
        tenants=tenants,
        tenant=tenant,
        lookup_id=query.identifier("id"),
        filter=_parse_filter(query),
        sort=query.choice("sort", SORTS, DEFAULT_SORT),
        limit=query.limit(),
        cursor=_parse_cursor(query, _build_list_id(parameters)),
        errors={},
        parameters=parameters,
        listed={},
    )
    query.refuse_unknown()
    if errors:
        return replace(
            parsed, errors={error.pointer.removeprefix("/query/"): error.detail for error in errors}
        )
    return parsed if parsed.lookup_id else replace(parsed, listed=_choose_listed_tenants(parsed))


def parse_tenants(query: Query) -> tuple[Mapping[uuid.UUID, str], uuid.UUID | None]:
    """Return the tenants that can be chosen, and the chosen one, which may not exist."""
    tenant = query.identifier("tenant")
    return {option.pk: option.name for option in list_tenant_options(tenant)}, tenant


def _choose_listed_tenants(query: ListQuery) -> Mapping[uuid.UUID, str]:
    if query.tenant is not None:
        return {query.tenant: query.tenants[query.tenant]}
    if query.lists_some_tenants:
        return list_tenants_with_calls(query.filter, MAX_TENANTS + 1)
    return query.tenants


def _build_list_id(parameters: QueryDict) -> str:
    """Return an ID that is the same for all pages of a list, so that a cursor is valid for its own list only."""
    pairs = sorted((name, sorted(values)) for name, values in parameters.lists() if name != "cursor")
    return "console " + hashlib.sha256(repr(pairs).encode()).hexdigest()[:16]


def _parse_filter(query: Query) -> CallFilter:
    tags = frozenset(query.texts("tag"))
    if len(tags) > MAX_TAGS:
        query.add_error("tag", f"must be given at most {MAX_TAGS} times")
    if query.choice("favorites", ("0", "1"), "0") == "1":
        tags |= {FAVORITE}
    date_field = query.choice("by", DATE_FIELDS, "due")
    name, name_prefix = _parse_prefix(query, "name")
    host, host_prefix = _parse_prefix(query, "host")
    whole_host, port = split_port(host or host_prefix)
    if port is not None:  # before a port, the name of the host is complete
        host, host_prefix = whole_host, ""
    return CallFilter(
        NO_TENANT,
        statuses=query.choices("status", Status.values),
        retrying=query.choice("retrying", ("0", "1"), "0") == "1",
        tags=tags,
        name=name,
        name_prefix=name_prefix,
        host=host and host.lower(),
        host_prefix=host_prefix.lower(),
        port=port,
        namespace=query.text("namespace"),
        correlation_id=query.identifier("correlationId"),
        replay_of=query.identifier("replayOf"),
        **_parse_dates(query, date_field),
    )


def _parse_prefix(query: Query, parameter: str) -> tuple[str | None, str]:
    """Return the whole value if it is in quotation marks, and otherwise the prefix."""
    text = query.text(parameter) or ""
    if len(text) > 2 and text[0] == text[-1] == '"':
        return text[1:-1], ""
    return None, text


def _parse_dates(query: Query, date_field: str) -> dict[str, Any]:
    zone = query.zone()
    begin, end = query.moment("from", zone), query.moment("to", zone)
    if begin and end and begin >= end:
        query.add_error("to", "must be later than From")
    return {f"{date_field}_from": begin, f"{date_field}_to": end}


def _parse_cursor(query: Query, list_id: str) -> PageCursor | None:
    cursor = query.cursor(list_id)
    if cursor is None:
        return None
    backward, offset, *values, service_call_id = cursor
    position = (*(datetime.fromisoformat(value) for value in values), uuid.UUID(service_call_id))
    return PageCursor(backward, offset, position)

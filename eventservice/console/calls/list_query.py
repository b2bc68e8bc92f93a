"""What a list of calls is asked for: its address says all of it, and is what a form or a link makes of it."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from django.http import QueryDict
from django.urls import reverse

from eventservice.api.call_filters import SORTS
from eventservice.api.formats import parse_instant
from eventservice.api.pagination import Query, make_cursor
from eventservice.api.problems import FieldError, raise_for_errors
from eventservice.console.base.forms import drop_empty_params
from eventservice.console.base.tenant_select import list_tenant_options
from orchestration.queries.call_lists import CallFilter, CallListPage, Order, Position, list_calls
from orchestration.queries.tenants_with_calls import list_tenants_with_calls, list_tenants_with_id
from orchestration.states import FAVORITE, MAX_TAGS, Status

# Each tenant has an index of its own: a list of all of them is merged from so many.
MOST_TENANTS = 50
DEFAULT_SORT = "-submittedAt"
BY = ("due", "submitted")
NOT_FILTERS = frozenset({"sort", "limit", "cursor", "by"})
NOBODY = uuid.UUID(int=0)


@dataclass(frozen=True, slots=True)
class Turn:
    """A page that is not the first: which way it was turned to, and how many calls come before its edge."""

    back: bool
    offset: int
    position: Position


@dataclass(frozen=True, slots=True)
class Asked:
    tenants: Mapping[uuid.UUID, str]  # that can be chosen, by name
    tenant: uuid.UUID | None
    sought: uuid.UUID | None  # the id of a call, or that of a correlation
    filter: CallFilter
    sort: str
    limit: int
    turn: Turn | None
    faults: Mapping[str, str]  # by parameter
    parameters: QueryDict  # without those that say nothing
    listed: Mapping[uuid.UUID, str]  # the tenants whose calls are listed, and one more if they are too many

    @property
    def too_many_tenants(self) -> bool:
        return len(self.listed) > MOST_TENANTS

    @property
    def of_some_tenants(self) -> bool:
        """There are so many that only those are listed which have such calls."""
        return self.tenant is None and len(self.tenants) > MOST_TENANTS

    def checked(self) -> Asked:
        """For what can do nothing with a list that is asked for in a wrong way."""
        faults = [FieldError(f"/query/{name}", rule) for name, rule in self.faults.items()]
        if self.sought and not faults:
            faults = [FieldError("/query/id", "is looked up by the list alone: it is no filter")]
        if not faults and self.too_many_tenants:
            faults = [FieldError("/query/tenant", "must be given: there are too many for one list")]
        raise_for_errors(faults)
        return self

    @property
    def wanted(self) -> list[CallFilter]:
        """For each tenant whose calls are listed."""
        return [replace(self.filter, tenant_id=tenant_id) for tenant_id in self.listed]

    @property
    def order(self) -> Order:
        return SORTS[self.sort]

    @property
    def is_filtered(self) -> bool:
        return any(name not in NOT_FILTERS for name in self.parameters)

    def read(self) -> CallListPage:
        turn = self.turn
        if turn is None:
            return list_calls(self.wanted, self.order, self.limit)
        edge = {"before" if turn.back else "after": turn.position}
        return list_calls(self.wanted, self.order, self.limit, **edge)

    # --- addresses ----------------------------------------------------------------------------------------------

    def query(self, **changes: str | Sequence[str] | None) -> str:
        """This list with changes, from its first page on."""
        parameters = self.parameters.copy()
        for name, value in {"cursor": None, **changes}.items():
            values = [value] if isinstance(value, str) else list(value or ())
            parameters.setlist(name, values)
        return parameters.urlencode()

    def address(self, **changes: str | Sequence[str] | None) -> str:
        query = self.query(**changes)
        return reverse("console:calls") + (f"?{query}" if query else "")

    def turned(self, turn: Turn) -> str:
        cursor = make_cursor(list_id(self.parameters), [turn.back, turn.offset, *turn.position])
        return self.address(cursor=cursor)


def read_asked(given: QueryDict) -> Asked:
    """Nothing is raised: a list that is asked for in a wrong way shows what is wrong, and where."""
    parameters = drop_empty_params(given)
    faults: list[FieldError] = []
    query = Query(parameters, faults)
    tenant = query.identifier("tenant")
    tenants = {one.pk: one.name for one in list_tenant_options(tenant)}
    if tenant is not None and tenant not in tenants:
        query.fault("tenant", "is not known: choose one from the list")
    asked = Asked(
        tenants=tenants,
        tenant=tenant,
        sought=query.identifier("id"),
        filter=_filter(query),
        sort=query.choice("sort", SORTS, DEFAULT_SORT),
        limit=query.limit(),
        turn=_turn(query, list_id(parameters)),
        faults={},
        parameters=parameters,
        listed={},
    )
    query.no_others()
    if faults:
        return replace(asked, faults={one.pointer.removeprefix("/query/"): one.detail for one in faults})
    return asked if asked.sought else replace(asked, listed=_listed(asked))


def _listed(asked: Asked) -> Mapping[uuid.UUID, str]:
    if asked.tenant is not None:
        return {asked.tenant: asked.tenants[asked.tenant]}
    return list_tenants_with_calls(asked.filter, MOST_TENANTS + 1) if asked.of_some_tenants else asked.tenants


def list_id(parameters: QueryDict) -> str:
    """The same for all pages of a list."""
    stated = sorted((name, sorted(values)) for name, values in parameters.lists() if name != "cursor")
    return "console " + hashlib.sha256(repr(stated).encode()).hexdigest()[:16]


def _filter(query: Query) -> CallFilter:
    tags = frozenset(query.texts("tag"))
    if len(tags) > MAX_TAGS:
        query.fault("tag", f"must be given at most {MAX_TAGS} times")
    if query.choice("favorites", ("0", "1"), "0") == "1":
        tags |= {FAVORITE}
    by = query.choice("by", BY, "due")
    host = query.text("host")
    return CallFilter(
        NOBODY,
        statuses=query.choices("status", Status.values),
        tags=tags,
        name=query.text("name"),
        host=host and host.lower(),
        namespace=query.text("namespace"),
        correlation_id=query.identifier("correlationId"),
        replay_of=query.identifier("replayOf"),
        **_dates(query, by),
    )


def _dates(query: Query, by: str) -> dict[str, Any]:
    least, most = _instant(query, "from"), _instant(query, "to")
    if least and most and least >= most:
        query.fault("to", "must be later than From")
    return {f"{by}_from": least, f"{by}_to": most}


def _instant(query: Query, name: str) -> datetime | None:
    """As the API takes it; without a zone in UTC, and a date is its midnight."""
    text = query.text(name)
    if text is None:
        return None
    # In a query a `+` that nobody encoded is a space.
    for whole in (text, text.replace(" ", "+"), f"{text}Z", f"{text}T00:00Z"):
        if moment := parse_instant(whole):
            return moment
    query.fault(name, 'must be a time in UTC, such as "2026-03-01T12:00"')
    return None


def _turn(query: Query, of_list: str) -> Turn | None:
    cursor = query.cursor(of_list)
    if cursor is None:
        return None
    back, offset, *values, service_call_id = cursor
    position = (*(datetime.fromisoformat(value) for value in values), uuid.UUID(service_call_id))
    return Turn(back, offset, position)


def in_field(moment: datetime | None) -> str:
    """What an <input type="datetime-local"> shows."""
    if moment is None:
        return ""
    at = moment.astimezone(UTC).replace(tzinfo=None)
    return at.isoformat(timespec="seconds" if at.second or at.microsecond else "minutes")


MOST_NAMED = 20


class NotFoundByIt(Exception):
    """Why an id leads nowhere, for whoever looks for it."""


def place_of(sought: uuid.UUID, asked: Asked) -> str:
    """The address of the call with this id, or of the list of those with this correlation id.

    But for the tenant, the filters have no say in which call an id is of. Raises NotFoundByIt.
    """
    owners = list_tenants_with_id("service_call_id", sought, asked.tenant, MOST_NAMED)
    if len(owners) > 1:  # whoever submits a call may choose its id
        names = ", ".join(owners.values())
        raise NotFoundByIt(f"Several tenants have a call with this id: choose one of {names}.")
    for tenant_id in owners:
        return reverse("console:call", args=[tenant_id, sought])
    if list_tenants_with_id("correlation_id", sought, asked.tenant, 1):
        return asked.address(id=None, correlationId=str(sought))
    of_tenant = f" of {asked.tenants[asked.tenant]}" if asked.tenant else ""
    raise NotFoundByIt(f"No call{of_tenant} has this id or correlation id.")

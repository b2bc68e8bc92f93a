"""Lists of service calls by filter. At a million rows an index answers each of them, whatever the filters.

No planner can be trusted with that on all databases (SQLite's has no statistics until somebody gathers them),
so a list is made in steps, and each step has only one sensible plan:

1. If a filter matches few calls (`MAX_SORTED_IDS`), their ids are read from that filter's index, then filtered and sorted.
   The calls of a prefix (`MAX_SORTED_OF_PREFIX`) are sorted in one statement, because its index has them in another order.
2. Otherwise the index of the requested order is walked from the start of the page, and calls that do not match are
   skipped. No filter is rare then, so the page soon fills. The order of submission is that of `submitted_at`; under
   a common tag it is that of the ids, which the tag's index contains. Both are the same unless clients choose
   ids that do not begin with the time, as UUIDv7 do.
3. The rows of the page are read by their ids.

Whatever is skipped takes time. Where nobody can tell how much that is (the calls of a frequent prefix may all be old), a
caller limits how many calls a walk looks at (`max_walked`): then the page may have fewer calls than were asked for,
and says where the search goes on.
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

from django.db.models import Exists, F, Func, Model, OrderBy, OuterRef, Q, QuerySet, lookups
from django.db.models.functions import Coalesce

from eventservice.db.sql import Unindexed, match_prefix
from eventservice.tenants.directory import list_namespaces
from eventservice.tenants.models import DEFAULT_NAMESPACE
from execution.url_rules import build_port_pattern
from orchestration.models import RETRYING, ServiceCall, ServiceCallTag
from orchestration.queries.calls import CHUNK_SIZE, CallKey, CallSummary, list_summaries
from orchestration.states import Status

MAX_SORTED_IDS = 2000
MAX_SORTED_OF_PREFIX = 20_000

MAX_SORTED_RETRYING = 20_000

# Few calls share such an id (the calls of one request, the replays of one call), and each has an index of its own.
RARE_ID_COLUMNS = ("correlation_id", "replay_of")

Position = tuple[Any, ...]  # the sorted column's value, and the service call id
TenantPosition = tuple[Position, uuid.UUID]  # in a list of several tenants
# Before and after all calls of one moment.
FIRST_ID, LAST_ID = uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True)
class CallFilter:
    """Conditions on the calls of one tenant. An empty set or None matches all."""

    tenant_id: uuid.UUID
    statuses: frozenset[str] = frozenset()
    retrying: bool = False  # Scheduled calls that wait for another attempt only
    tags: frozenset[str] = frozenset()
    any_tag: bool = False  # one of the tags is enough
    due_from: datetime | None = None
    due_to: datetime | None = None
    submitted_from: datetime | None = None
    submitted_to: datetime | None = None
    name: str | None = None
    name_prefix: str = ""
    host: str | None = None
    host_prefix: str = ""
    port: int | None = None  # of the URL; given with the host
    namespace: str | None = None
    correlation_id: uuid.UUID | None = None
    replay_of: uuid.UUID | None = None
    timers: bool = False  # durable timers only
    timer_prefix: str = ""  # what the timer's id begins with


@dataclass(frozen=True, slots=True)
class Order:
    column: str = "submitted_at"
    descending: bool = True


@dataclass(frozen=True, slots=True)
class CallListPage:
    calls: list[CallSummary]
    # Where the next page begins; None: this is the last.
    following: Position | None
    # Where the previous page ends; None: this is the first.
    preceding: Position | None = None
    # Whether the search stopped before the page was full, because it had looked at as many calls as it may.
    is_partial: bool = False


class Walk(NamedTuple):
    """The positions that a walk has found, and where it stopped if it has looked at as many calls as it may.

    `by_id` if it went in the order of the ids, which clients may choose, and not of the positions.
    """

    found: list[Position]
    stopped_at: Position | None = None
    by_id: bool = False


def list_calls(
    filters: Sequence[CallFilter],
    order: Order,
    limit: int,
    *,
    after: Position | None = None,
    before: Position | None = None,
    max_walked: int | None = None,
) -> CallListPage:
    """Return the page after a position, or the one that ends before it. Several filters, which must differ in their
    tenants alone, make one list.

    With `max_walked`, a search stops after about so many calls of a tenant. Then the page may have fewer calls than the
    limit, although another one follows.
    """
    if before is None:
        found, stopped_at = _merge_positions(filters, order, after, limit + 1, max_walked)
        page = found[:limit]
        return CallListPage(
            _read_rows(page),
            following=page[-1][0] if len(found) > limit else stopped_at,
            preceding=page[0][0] if page and after is not None else None,
            is_partial=stopped_at is not None,
        )
    backward = Order(order.column, not order.descending)
    found, stopped_at = _merge_positions(filters, backward, before, limit + 1, max_walked)
    page = found[:limit][::-1]
    return CallListPage(
        _read_rows(page),
        following=page[-1][0] if page else None,
        preceding=page[0][0] if len(found) > limit else stopped_at,
        is_partial=stopped_at is not None,
    )


def _read_rows(page: list[TenantPosition]) -> list[CallSummary]:
    return list_summaries([(tenant_id, position[-1]) for position, tenant_id in page])


def list_keys(filters: Sequence[CallFilter], order: Order, limit: int) -> list[CallKey]:
    """Return the keys of the first calls of a list."""
    keys: list[CallKey] = []
    after: Position | None = None
    while len(keys) < limit:
        chunk_size = min(CHUNK_SIZE, limit - len(keys))
        found, _ = _merge_positions(filters, order, after, chunk_size)
        keys += [(tenant_id, position[-1]) for position, tenant_id in found]
        if len(found) < chunk_size:
            break
        after = found[-1][0]
    return keys


def _merge_positions(
    filters: Sequence[CallFilter],
    order: Order,
    after: Position | None,
    limit: int,
    max_walked: int | None = None,
) -> tuple[list[TenantPosition], Position | None]:
    """Return the first positions, and where the search stopped if it found fewer than the limit because of that.

    A position means the same in each tenant's list.
    """
    walks = [(one.tenant_id, _read_positions(one, order, after, limit, max_walked)) for one in filters]
    merged = heapq.merge(
        *([(at, tenant_id) for at in walk.found] for tenant_id, walk in walks),
        key=itemgetter(0),
        reverse=order.descending,
    )
    reach = _Reach([walk for _, walk in walks], order)
    found = list(islice((row for row in merged if reach.includes(row[0])), limit))
    return found, reach.end if len(found) < limit else None


class _Reach:
    """The part of the order that all of several walks have covered. Beyond that, one of them may have calls that it has not found."""

    def __init__(self, walks: Collection[Walk], order: Order) -> None:
        stops = [walk.stopped_at for walk in walks if walk.stopped_at is not None]
        self._compares = itemgetter(-1) if any(walk.by_id for walk in walks) else tuple
        self._descending = order.descending
        self.end: Position | None = (max if order.descending else min)(
            stops, key=self._compares, default=None
        )

    def includes(self, position: Position) -> bool:
        if self.end is None:
            return True
        place, end = self._compares(position), self._compares(self.end)
        return bool(place >= end if self._descending else place <= end)


def _read_positions(
    call_filter: CallFilter,
    order: Order,
    after: Position | None,
    limit: int,
    max_walked: int | None = None,
) -> Walk:
    calls = ServiceCall.objects.for_tenant(call_filter.tenant_id)
    sortable = _select_sortable(calls, call_filter)
    if sortable is not None:
        wrap = _hide_order if call_filter.retrying else Unindexed
        return Walk(_read_in_order(sortable, order, after, limit, wrap))
    if order.column == "submitted_at" and _can_walk_by_tag(call_filter):
        return _walk_tag(call_filter, order.descending, after, limit, max_walked)
    if order.column == "due_at":
        return _walk_due(calls, call_filter, order, after, limit, max_walked)
    indexed, conditions = _split_by_index(call_filter)
    return _walk(calls.filter(indexed), conditions, order, after, limit, max_walked)


def _hide_order(column: F) -> Coalesce:
    """Wrap a column so that no planner walks its index. PostgreSQL's would: it expects many calls that wait for another
    attempt, because most calls have been attempted, and many are Scheduled."""
    return Coalesce(column, column)


def _select_sortable(calls: QuerySet[ServiceCall], call_filter: CallFilter) -> QuerySet[Any] | None:
    """Select the matching calls if they are so few that they can be sorted."""
    rare = select_by_rare_id(call_filter)
    if rare is not None:
        return rare
    few = list_few_ids(call_filter)
    if few is not None:
        return calls.filter(match_without_index(call_filter), service_call_id__in=few)
    if call_filter.retrying:
        retrying = calls.filter(RETRYING)
        if _has_at_most(retrying, MAX_SORTED_RETRYING):
            return retrying.filter(match_without_index(call_filter, without="retrying"))
    some = _select_some_of_prefix(calls, call_filter)
    return None if some is None else some.filter(match_without_index(call_filter))


def _read_in_order(
    calls: QuerySet[Model],
    order: Order,
    after: Position | None,
    limit: int,
    wrap: Callable[[F], F | Func] = lambda column: column,
) -> list[Position]:
    """`wrap` is Unindexed where the rows are few: then they are to be sorted, and no index is to be walked."""
    names = order.column, "service_call_id"
    first, last = (wrap(F(name)) for name in names)
    if after is not None:
        calls = calls.filter(_match_beyond(first, last, order.descending, after))
    ordered = calls.order_by(*(OrderBy(column, descending=order.descending) for column in (first, last)))
    return list(ordered.values_list(*names)[:limit])


def _match_beyond(first: Any, last: Any, descending: bool, after: Position) -> Q:
    beyond = lookups.LessThan if descending else lookups.GreaterThan
    # The first condition follows from the others, but it is the one that an index can begin at.
    begin = (lookups.LessThanOrEqual if descending else lookups.GreaterThanOrEqual)(first, after[0])
    tie = Q(lookups.Exact(first, after[0]), beyond(last, after[1]))
    return Q(begin) & (Q(beyond(first, after[0])) | tie)


# --- step 1: few ------------------------------------------------------------------------------------------------


def select_by_rare_id(call_filter: CallFilter) -> QuerySet[Model] | None:
    """Select the matching calls if the filter names an id that only few calls share."""
    for column in RARE_ID_COLUMNS:
        if (value := getattr(call_filter, column)) is not None:
            calls = ServiceCall.objects.for_tenant(call_filter.tenant_id).filter(**{column: value})
            return calls.filter(match_without_index(call_filter, without=column)).order_by()
    return None


def list_few_ids(call_filter: CallFilter) -> list[uuid.UUID] | None:
    """Return the ids of all calls that match one part of the filter, if there is a part that only few match."""
    found = select_few(call_filter)
    return None if found is None else list(set(found.values_list("service_call_id", flat=True)))


def select_few(call_filter: CallFilter) -> QuerySet[Model] | None:
    """Select the calls that match one part of the filter, if there is a part that only few match."""
    for found in select_by_each_part(call_filter):
        found = found.order_by()
        # Counted first: that takes the index alone.
        if _has_at_most(found, MAX_SORTED_IDS):
            return found
    return None


def _has_at_most(rows: QuerySet[Any], count: int) -> bool:
    return rows.order_by().values_list("tenant_id")[: count + 1].count() <= count


def select_by_each_part(call_filter: CallFilter) -> Iterator[QuerySet[Model]]:
    """Yield the calls, or tags, that match each part of the filter that has an index."""
    tags = ServiceCallTag.objects.for_tenant(call_filter.tenant_id)
    calls = ServiceCall.objects.for_tenant(call_filter.tenant_id)
    if call_filter.any_tag and call_filter.tags:
        yield tags.filter(tag__in=call_filter.tags)
    else:
        yield from (tags.filter(tag=tag) for tag in sorted(call_filter.tags))
    if call_filter.retrying:
        yield calls.filter(RETRYING)
    if call_filter.statuses:
        yield calls.filter(
            status__in=call_filter.statuses, **build_range("due_at", call_filter.due_from, call_filter.due_to)
        )
    elif call_filter.due_from or call_filter.due_to:
        every = sorted(Status.values)
        yield calls.filter(
            status__in=every, **build_range("due_at", call_filter.due_from, call_filter.due_to)
        )
    if call_filter.submitted_from or call_filter.submitted_to:
        yield calls.filter(
            **build_range("submitted_at", call_filter.submitted_from, call_filter.submitted_to)
        )
    if call_filter.timers:
        yield _select_timers(calls, call_filter)
    for column in ("host", "name", "namespace"):
        value = getattr(call_filter, column)
        if value is not None and value != DEFAULT_NAMESPACE:
            yield calls.filter(**{column: value})
    yield from (found for _, found in select_by_prefix(calls, call_filter))


def select_by_prefix(
    calls: QuerySet[ServiceCall], call_filter: CallFilter
) -> Iterator[tuple[str, QuerySet[ServiceCall]]]:
    """Yield the column, and the calls whose host or name begins with the filter's prefix."""
    for column in ("host", "name"):
        if prefix := getattr(call_filter, f"{column}_prefix"):
            yield column, calls.filter(match_prefix(F(column), prefix))


def _select_some_of_prefix(
    calls: QuerySet[ServiceCall], call_filter: CallFilter
) -> QuerySet[ServiceCall] | None:
    """Select the calls of a prefix if they can be sorted in time."""
    for _, found in select_by_prefix(calls, call_filter):
        if _has_at_most(found, MAX_SORTED_OF_PREFIX):
            return found
    return None


def _select_timers(calls: QuerySet[ServiceCall], call_filter: CallFilter) -> QuerySet[ServiceCall]:
    namespaces = [call_filter.namespace] if call_filter.namespace is not None else []
    if call_filter.timer_prefix and not namespaces:
        # The index begins with the namespace.
        namespaces = [namespace.name for namespace in list_namespaces(call_filter.tenant_id)]
    within = {"namespace__in": namespaces} if namespaces else {}
    timers = calls.filter(external_id__isnull=False, **within)
    prefix = call_filter.timer_prefix
    return timers.filter(match_prefix(F("external_id"), prefix)) if prefix else timers


# --- step 2: a walk ---------------------------------------------------------------------------------------------


def _can_walk_by_tag(call_filter: CallFilter) -> bool:
    all_tags = len(call_filter.tags) == 1 or (bool(call_filter.tags) and not call_filter.any_tag)
    return all_tags and call_filter.submitted_from is None and call_filter.submitted_to is None


def _walk_tag(
    call_filter: CallFilter,
    descending: bool,
    after: Position | None,
    limit: int,
    max_walked: int | None,
) -> Walk:
    tag, *others = sorted(call_filter.tags)
    tagged = ServiceCallTag.objects.for_tenant(call_filter.tenant_id).filter(tag=tag)
    if after is not None:
        tagged = tagged.filter(**{f"service_call_id__{'lt' if descending else 'gt'}": after[-1]})
    ordered = tagged.order_by("-service_call_id" if descending else "service_call_id")
    conditions = match_without_index(call_filter, "service_call__", tags=False)
    end = None
    if max_walked is not None and (others or conditions):
        at = max_walked - 1
        end = ordered.values_list("service_call_id", flat=True)[at : at + 1].first()
        if end is not None:
            ordered = ordered.filter(**{f"service_call_id__{'gte' if descending else 'lte'}": end})
    for other in others:
        ordered = ordered.filter(_has_tag(call_filter, {other}))
    matching = ordered.filter(conditions)
    found = list(matching.values_list("service_call__submitted_at", "service_call_id")[:limit])
    if end is None or len(found) == limit:
        return Walk(found, by_id=True)
    stopped = ServiceCall.objects.for_tenant(call_filter.tenant_id).filter(service_call_id=end)
    return Walk(found, stopped.values_list("submitted_at", "service_call_id").first(), by_id=True)


def _walk_due(
    calls: QuerySet[ServiceCall],
    call_filter: CallFilter,
    order: Order,
    after: Position | None,
    limit: int,
    max_walked: int | None,
) -> Walk:
    """Merge one walk for each status: the index begins with it."""
    within = build_range("due_at", call_filter.due_from, call_filter.due_to)
    conditions = match_without_index(replace(call_filter, due_from=None, due_to=None), without="status")
    statuses = sorted(call_filter.statuses or ([Status.SCHEDULED] if call_filter.retrying else Status.values))
    walks = [
        _walk(calls.filter(status=status, **within), conditions, order, after, limit, max_walked)
        for status in statuses
    ]
    reach = _Reach(walks, order)
    merged = heapq.merge(*(walk.found for walk in walks), reverse=order.descending)
    found = list(islice(filter(reach.includes, merged), limit))
    return Walk(found, reach.end if len(found) < limit else None)


def _walk(
    indexed: QuerySet[ServiceCall],
    conditions: Q,
    order: Order,
    after: Position | None,
    limit: int,
    max_walked: int | None,
) -> Walk:
    """Walk an index in its order, and skip what does not meet the conditions."""
    end = _find_end(indexed, order, after, max_walked) if max_walked is not None and conditions else None
    matching = indexed.filter(conditions)
    if end is not None:
        reached = lookups.GreaterThanOrEqual if order.descending else lookups.LessThanOrEqual
        matching = matching.filter(reached(F(order.column), end))
    found = _read_in_order(matching, order, after, limit)
    if end is None or len(found) == limit:
        return Walk(found)
    return Walk(found, (end, FIRST_ID if order.descending else LAST_ID))


def _find_end(
    indexed: QuerySet[ServiceCall], order: Order, after: Position | None, max_walked: int
) -> datetime | None:
    """Return the moment to which a walk may go, so that it looks at `max_walked` calls and at the others of that moment,
    or None if there are fewer. It is read from the index alone, and lies beyond the moment of `after`."""
    if after is not None:
        beyond = lookups.LessThan if order.descending else lookups.GreaterThan
        indexed = indexed.filter(beyond(F(order.column), after[0]))
    moments = indexed.order_by(OrderBy(F(order.column), descending=order.descending))
    found: datetime | None = moments.values_list(order.column, flat=True)[max_walked - 1 : max_walked].first()
    return found


def _split_by_index(call_filter: CallFilter) -> tuple[Q, Q]:
    """Return the conditions that an index in the order of submission answers, and the others.

    It is the index of submission, or that of the host or the name, which have the same order.
    """
    for column in ("host", "name"):
        if (value := getattr(call_filter, column)) is not None:
            return Q(**{column: value}), match_without_index(call_filter, without=column)
    submitted = build_range("submitted_at", call_filter.submitted_from, call_filter.submitted_to)
    others = replace(call_filter, submitted_from=None, submitted_to=None)
    return Q(**submitted), match_without_index(others)


# --- conditions -------------------------------------------------------------------------------------------------


def match_without_index(
    call_filter: CallFilter, path: str = "", *, tags: bool = True, without: str = ""
) -> Q:
    """Return the filter's conditions in a form for which no planner takes an index; `without` one column, which the
    caller answers by an index."""
    conditions = Q()
    if call_filter.statuses and without != "status":
        conditions &= _compare(path + "status", "In", sorted(call_filter.statuses))
    if call_filter.retrying and without != "retrying":
        conditions &= _compare(path + "status", "Exact", Status.SCHEDULED)
        conditions &= _compare(path + "attempt", "GreaterThanOrEqual", 1)
    for column in ("host", "name", "namespace", *RARE_ID_COLUMNS):
        value = getattr(call_filter, column)
        if value is not None and without != column:
            conditions &= _compare(path + column, "Exact", value)
    if call_filter.port is not None:
        conditions &= Q(**{path + "request_spec__url__iregex": build_port_pattern(call_filter.port)})
    for column in ("host", "name"):
        if prefix := getattr(call_filter, f"{column}_prefix"):
            conditions &= match_prefix(Unindexed(F(path + column)), prefix)
    for column, begin, end in (
        ("due_at", call_filter.due_from, call_filter.due_to),
        ("submitted_at", call_filter.submitted_from, call_filter.submitted_to),
    ):
        if begin is not None:
            conditions &= _compare(path + column, "GreaterThanOrEqual", begin)
        if end is not None:
            conditions &= _compare(path + column, "LessThan", end)
    if call_filter.timers:
        conditions &= Q(**{path + "external_id__isnull": False})
    if call_filter.timer_prefix:
        conditions &= match_prefix(Unindexed(F(path + "external_id")), call_filter.timer_prefix)
    if call_filter.tags and tags:
        for group in (
            [call_filter.tags] if call_filter.any_tag else [{tag} for tag in sorted(call_filter.tags)]
        ):
            conditions &= _has_tag(call_filter, group)
    return conditions


def _compare(column: str, lookup: str, value: object) -> Q:
    return Q(getattr(lookups, lookup)(Unindexed(F(column)), value))


def _has_tag(call_filter: CallFilter, tags: Collection[str]) -> Q:
    rows = ServiceCallTag.objects.for_tenant(call_filter.tenant_id)
    return Q(Exists(rows.filter(service_call_id=OuterRef("service_call_id"), tag__in=sorted(tags))))


def build_range(column: str, begin: datetime | None, end: datetime | None) -> dict[str, datetime]:
    """Return the lookups for `begin` ≤ column < `end`."""
    bounds = {f"{column}__gte": begin, f"{column}__lt": end}
    return {name: bound for name, bound in bounds.items() if bound is not None}

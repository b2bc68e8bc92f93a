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
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from operator import itemgetter
from typing import Any

from django.db.models import Exists, F, Model, OrderBy, OuterRef, Q, QuerySet, lookups

from eventservice.db.sql import Unindexed, match_prefix
from eventservice.tenants.directory import list_namespaces
from eventservice.tenants.models import DEFAULT_NAMESPACE
from orchestration.models import ServiceCall, ServiceCallTag
from orchestration.queries.calls import CHUNK_SIZE, CallKey, CallSummary, list_summaries
from orchestration.states import Status

MAX_SORTED_IDS = 2000
MAX_SORTED_OF_PREFIX = 20_000

# Few calls share such an id (the calls of one request, the replays of one call), and each has an index of its own.
RARE_ID_COLUMNS = ("correlation_id", "replay_of")

Position = tuple[Any, ...]  # the sorted column's value, and the service call id
TenantPosition = tuple[Position, uuid.UUID]  # in a list of several tenants


@dataclass(frozen=True, slots=True)
class CallFilter:
    """Conditions on the calls of one tenant. An empty set or None matches all."""

    tenant_id: uuid.UUID
    statuses: frozenset[str] = frozenset()
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


@dataclass(slots=True)
class WalkLimit:
    """How many calls that have one of several tags a walk may look at, and where it has stopped, if it has."""

    max_calls: int
    stopped_at: Position | None = None


def list_calls(
    filters: Sequence[CallFilter],
    order: Order,
    limit: int,
    *,
    after: Position | None = None,
    before: Position | None = None,
) -> CallListPage:
    """Return the page after a position, or the one that ends before it. Several filters, which must differ in their
    tenants alone, make one list."""
    if before is None:
        found = _merge_positions(filters, order, after, limit + 1)
        return _build_page(found[:limit], more_before=after is not None, more_after=len(found) > limit)
    found = _merge_positions(filters, Order(order.column, not order.descending), before, limit + 1)
    return _build_page(found[:limit][::-1], more_before=len(found) > limit, more_after=True)


def list_calls_in_time(
    call_filter: CallFilter, order: Order, limit: int, *, after: Position | None, max_walked: int
) -> CallListPage:
    """Return the page after a position. A search for several tags stops after `max_walked` calls of one of them: then the
    page may have fewer calls than the limit, although another one follows."""
    walk_limit = WalkLimit(max_walked)
    found = _merge_positions([call_filter], order, after, limit + 1, walk_limit)
    page = _build_page(found[:limit], more_before=after is not None, more_after=len(found) > limit)
    return replace(page, following=page.following or walk_limit.stopped_at)


def _build_page(found: list[TenantPosition], *, more_before: bool, more_after: bool) -> CallListPage:
    return CallListPage(
        list_summaries([(tenant_id, position[-1]) for position, tenant_id in found]),
        following=found[-1][0] if found and more_after else None,
        preceding=found[0][0] if found and more_before else None,
    )


def list_keys(filters: Sequence[CallFilter], order: Order, limit: int) -> list[CallKey]:
    """Return the keys of the first calls of a list."""
    keys: list[CallKey] = []
    after: Position | None = None
    while len(keys) < limit:
        chunk_size = min(CHUNK_SIZE, limit - len(keys))
        found = _merge_positions(filters, order, after, chunk_size)
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
    walk_limit: WalkLimit | None = None,
) -> list[TenantPosition]:
    """A position means the same in each tenant's list."""
    walks = [
        [(at, one.tenant_id) for at in _read_positions(one, order, after, limit, walk_limit)]
        for one in filters
    ]
    return list(islice(heapq.merge(*walks, key=itemgetter(0), reverse=order.descending), limit))


def _read_positions(
    call_filter: CallFilter,
    order: Order,
    after: Position | None,
    limit: int,
    walk_limit: WalkLimit | None = None,
) -> list[Position]:
    calls = ServiceCall.objects.for_tenant(call_filter.tenant_id)
    rare = select_by_rare_id(call_filter)
    if rare is not None:
        return _read_in_order(rare, order, after, limit, Unindexed)
    few = list_few_ids(call_filter)
    if few is not None:
        matching = calls.filter(match_without_index(call_filter), service_call_id__in=few)
        return _read_in_order(matching, order, after, limit, Unindexed)
    some = _select_some_of_prefix(calls, call_filter)
    if some is not None:
        return _read_in_order(some.filter(match_without_index(call_filter)), order, after, limit, Unindexed)
    if order.column == "submitted_at" and _can_walk_by_tag(call_filter):
        return _walk_tag(call_filter, order.descending, after, limit, walk_limit)
    if order.column == "due_at":
        return _walk_due(calls, call_filter, order, after, limit)
    return _read_in_order(calls.filter(_match_in_order(call_filter)), order, after, limit)


def _read_in_order(
    calls: QuerySet[Model],
    order: Order,
    after: Position | None,
    limit: int,
    wrap: Callable[[F], F | Unindexed] = lambda column: column,
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
        if found.values_list("tenant_id")[: MAX_SORTED_IDS + 1].count() <= MAX_SORTED_IDS:
            return found
    return None


def select_by_each_part(call_filter: CallFilter) -> Iterator[QuerySet[Model]]:
    """Yield the calls, or tags, that match each part of the filter that has an index."""
    tags = ServiceCallTag.objects.for_tenant(call_filter.tenant_id)
    calls = ServiceCall.objects.for_tenant(call_filter.tenant_id)
    if call_filter.any_tag and call_filter.tags:
        yield tags.filter(tag__in=call_filter.tags)
    else:
        yield from (tags.filter(tag=tag) for tag in sorted(call_filter.tags))
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
        if (
            found.order_by().values_list("tenant_id")[: MAX_SORTED_OF_PREFIX + 1].count()
            <= MAX_SORTED_OF_PREFIX
        ):
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
    walk_limit: WalkLimit | None,
) -> list[Position]:
    tag, *others = sorted(call_filter.tags)
    tagged = ServiceCallTag.objects.for_tenant(call_filter.tenant_id).filter(tag=tag)
    if after is not None:
        tagged = tagged.filter(**{f"service_call_id__{'lt' if descending else 'gt'}": after[-1]})
    ordered = tagged.order_by("-service_call_id" if descending else "service_call_id")
    end = None
    if walk_limit is not None and others:
        at = walk_limit.max_calls - 1
        end = ordered.values_list("service_call_id", flat=True)[at : at + 1].first()
        if end is not None:
            ordered = ordered.filter(**{f"service_call_id__{'gte' if descending else 'lte'}": end})
    for other in others:
        ordered = ordered.filter(_has_tag(call_filter, {other}))
    matching = ordered.filter(match_without_index(call_filter, "service_call__", tags=False))
    found = list(matching.values_list("service_call__submitted_at", "service_call_id")[:limit])
    if walk_limit is not None and end is not None and len(found) < limit:
        calls = ServiceCall.objects.for_tenant(call_filter.tenant_id).filter(service_call_id=end)
        walk_limit.stopped_at = calls.values_list("submitted_at", "service_call_id").first()
    return found


def _walk_due(
    calls: QuerySet[Model], call_filter: CallFilter, order: Order, after: Position | None, limit: int
) -> list[Position]:
    """Merge one walk for each status: the index begins with it."""
    within = build_range("due_at", call_filter.due_from, call_filter.due_to)
    matching = calls.filter(match_without_index(call_filter, without="status"))
    walks = [
        _read_in_order(matching.filter(status=status, **within), order, after, limit)
        for status in sorted(call_filter.statuses or Status.values)
    ]
    return list(heapq.merge(*walks, reverse=order.descending))[:limit]


def _match_in_order(call_filter: CallFilter) -> Q:
    """Return the conditions for reading calls in the order of submission.

    They can use the index of submission, or that of the host or the name, which have the same order.
    """
    for column in ("host", "name"):
        if (value := getattr(call_filter, column)) is not None:
            return Q(**{column: value}) & match_without_index(call_filter, without=column)
    submitted = build_range("submitted_at", call_filter.submitted_from, call_filter.submitted_to)
    return Q(**submitted) & match_without_index(call_filter)


# --- conditions -------------------------------------------------------------------------------------------------


def match_without_index(
    call_filter: CallFilter, path: str = "", *, tags: bool = True, without: str = ""
) -> Q:
    """Return the filter's conditions in a form for which no planner takes an index; `without` one column, which the
    caller answers by an index."""
    conditions = Q()
    if call_filter.statuses and without != "status":
        conditions &= _compare(path + "status", "In", sorted(call_filter.statuses))
    for column in ("host", "name", "namespace", *RARE_ID_COLUMNS):
        value = getattr(call_filter, column)
        if value is not None and without != column:
            conditions &= _compare(path + column, "Exact", value)
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

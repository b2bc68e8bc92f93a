"""Reading service calls. Every list is answered by an index at a million rows, whatever it is filtered by.

No planner can be trusted with that on all databases (SQLite's knows no statistics until somebody gathers them),
so a list is made in steps of which each has one sensible plan:

1. A filter that few calls pass (`FEW`) gives its ids, by its own index; they are filtered and sorted.
2. Otherwise the index of the order is walked from where the page begins, past what the filters refuse: since
   none of them is rare, the page is soon full. The order by submission is that of `submitted_at`; under a
   common tag it is that of the ids, which the tag's index is in, and which is the same unless clients choose
   ids that are not made of the time, as UUIDv7 are.
3. The page's rows are read by their ids.
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from operator import itemgetter
from typing import Any

from django.db.models import Case, Exists, F, OrderBy, OuterRef, Q, QuerySet, When, lookups
from django.db.models.fields.json import KeyTextTransform, KeyTransform

from eventservice.db.sql import Aside
from eventservice.kernel.errors import NotFound
from eventservice.tenants.models import DEFAULT_NAMESPACE
from orchestration.models import ServiceCall, ServiceCallTag
from orchestration.states import Status

FEW = 2000
# Of many calls, so many at once.
PIECE = 1000

COLUMNS = (
    "tenant_id", "service_call_id", "name", "status", "submitted_at", "due_at", "started_at", "finished_at",
    "request_spec", "outcome_meta", "namespace", "external_id", "idempotency_key", "correlation_id", "replay_of",
    "retry_policy", "timeout_seconds", "response_contract", "delivery", "attempt", "cancel_requested", "host",
    "interruptions",
)  # fmt: skip
LISTED = (
    "tenant_id", "service_call_id", "name", "status", "submitted_at", "due_at", "started_at", "finished_at",
    "outcome_meta", "namespace", "external_id", "host", "correlation_id", "replay_of", "response_contract", "attempt",
    "cancel_requested",
)  # fmt: skip

# What one request made, and what was made of a call again: few, each by an index of its own.
NARROW = ("correlation_id", "replay_of")

Position = tuple[Any, ...]
CallKey = tuple[uuid.UUID, uuid.UUID]  # its tenant, and its id
Placed = tuple[Position, uuid.UUID]  # in a list of several tenants


@dataclass(frozen=True, slots=True)
class CallFilter:
    tenant_id: uuid.UUID
    statuses: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    any_tag: bool = False
    due_from: datetime | None = None
    due_to: datetime | None = None
    submitted_from: datetime | None = None
    submitted_to: datetime | None = None
    name: str | None = None
    host: str | None = None
    namespace: str | None = None
    correlation_id: uuid.UUID | None = None
    replay_of: uuid.UUID | None = None
    # Durable timers only.
    timers: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    column: str = "submitted_at"
    descending: bool = True


@dataclass(frozen=True, slots=True)
class Page:
    calls: list[dict[str, Any]]
    # Where the next one begins; None: this is the last.
    following: Position | None
    # Where the one before it ends; None: this is the first.
    preceding: Position | None = None


def call_of(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> dict[str, Any]:
    """Its columns and its tags; raises NotFound."""
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id)
    call = calls.values(*COLUMNS).first()
    if call is None:
        raise NotFound("service call")
    return {**call, "tags": tags_of(tenant_id, [service_call_id]).get(service_call_id, [])}


def state_of(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Status:
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id)
    status = calls.values_list("status", flat=True).first()
    if status is None:
        raise NotFound("service call")
    return Status(status)


def made_under(tenant_id: uuid.UUID, idempotency_key: str) -> uuid.UUID | None:
    """The call that was submitted with this key."""
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(idempotency_key=idempotency_key)
    found: uuid.UUID | None = calls.values_list("service_call_id", flat=True).first()
    return found


def tags_of(tenant_id: uuid.UUID, service_call_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, list[str]]:
    tags: dict[uuid.UUID, list[str]] = {}
    rows = ServiceCallTag.objects.for_tenant(tenant_id).filter(service_call_id__in=service_call_ids)
    for service_call_id, tag in rows.values_list("service_call_id", "tag"):
        tags.setdefault(service_call_id, []).append(tag)
    return tags


def replays_of(tenant_id: uuid.UUID, service_call_id: uuid.UUID, most: int) -> list[Mapping[str, Any]]:
    """What has been made of a call again, the latest first."""
    replays = ServiceCall.objects.for_tenant(tenant_id).filter(replay_of=service_call_id)
    latest = replays.order_by(
        Aside(F("service_call_id")).desc()
    )  # else SQLite walks the tenant's calls in this order
    return list(latest.values("service_call_id", "status", "submitted_at")[:most])


def replayed(keys: Sequence[CallKey]) -> set[CallKey]:
    """Those that have been made again: by a replay that nobody canceled."""
    found: set[CallKey] = set()
    for tenant_id, ids in by_tenant(keys).items():
        calls = ServiceCall.objects.for_tenant(tenant_id).exclude(status=Status.CANCELED)
        for start in range(0, len(ids), PIECE):
            replays = calls.filter(replay_of__in=ids[start : start + PIECE])
            origins = replays.values_list("replay_of", flat=True)
            found |= {(tenant_id, origin) for origin in origins if origin is not None}
    return found


def pending_of(tenant_id: uuid.UUID, most: int) -> int:
    """How many calls are Scheduled, counted up to `most`: an index alone tells."""
    pending = ServiceCall.objects.for_tenant(tenant_id).filter(status=Status.SCHEDULED)
    return pending.order_by().values_list("tenant_id")[:most].count()


def timer_call_of(tenant_id: uuid.UUID, namespace: str, timer_id: str) -> Mapping[str, Any]:
    """The live call of a durable timer, or the last that came to its own end; raises NotFound."""
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(namespace=namespace)
    live = calls.filter(live_external_id=timer_id).values(*COLUMNS).first()
    ended = calls.filter(external_id=timer_id, status__in=[Status.SUCCEEDED, Status.FAILED])
    call: Mapping[str, Any] | None = (
        live or ended.order_by("-submitted_at", "-service_call_id").values(*COLUMNS).first()
    )
    if call is None:
        raise NotFound("timer")
    return call


# --- lists ----------------------------------------------------------------------------------------------------


def list_calls(wanted: CallFilter, order: Order, after: Position | None, limit: int) -> Page:
    return list_merged([wanted], order, limit, after=after)


def list_merged(
    wanted: Sequence[CallFilter],
    order: Order,
    limit: int,
    *,
    after: Position | None = None,
    before: Position | None = None,
) -> Page:
    """One filter for several tenants, as one list: the page after a position, or the one that ends before it."""
    if before is None:
        found = _merged(wanted, order, after, limit + 1)
        return _page(found[:limit], more_before=after is not None, more_after=len(found) > limit)
    found = _merged(wanted, Order(order.column, not order.descending), before, limit + 1)
    return _page(found[:limit][::-1], more_before=len(found) > limit, more_after=True)


def _page(found: list[Placed], *, more_before: bool, more_after: bool) -> Page:
    return Page(
        listed([(tenant_id, position[-1]) for position, tenant_id in found]),
        following=found[-1][0] if found and more_after else None,
        preceding=found[0][0] if found and more_before else None,
    )


def keys_of(wanted: Sequence[CallFilter], order: Order, most: int) -> list[CallKey]:
    """Which calls those are, up to so many."""
    keys: list[CallKey] = []
    after: Position | None = None
    while len(keys) < most:
        asked = min(PIECE, most - len(keys))
        found = _merged(wanted, order, after, asked)
        keys += [(tenant_id, position[-1]) for position, tenant_id in found]
        if len(found) < asked:
            break
        after = found[-1][0]
    return keys


def statuses_of(keys: Sequence[CallKey]) -> dict[CallKey, str]:
    """Of those that are there."""
    statuses: dict[CallKey, str] = {}
    for tenant_id, ids in by_tenant(keys).items():
        calls = ServiceCall.objects.for_tenant(tenant_id)
        for start in range(0, len(ids), PIECE):
            rows = calls.filter(service_call_id__in=ids[start : start + PIECE])
            statuses |= {
                (tenant_id, one): status for one, status in rows.values_list("service_call_id", "status")
            }
    return statuses


def _merged(wanted: Sequence[CallFilter], order: Order, after: Position | None, limit: int) -> list[Placed]:
    """A position says the same in each tenant's list."""
    walks = [[(at, one.tenant_id) for at in _positions(one, order, after, limit)] for one in wanted]
    return list(islice(heapq.merge(*walks, key=itemgetter(0), reverse=order.descending), limit))


def listed(keys: Sequence[CallKey]) -> list[dict[str, Any]]:
    """What lists show of these calls, in this order, without those that are gone."""
    rows: dict[CallKey, dict[str, Any]] = {}
    for tenant_id, ids in by_tenant(keys).items():
        rows |= {(tenant_id, row["service_call_id"]): row for row in _listed(tenant_id, ids)}
    return [rows[key] for key in keys if key in rows]


def by_tenant(keys: Iterable[CallKey]) -> dict[uuid.UUID, list[uuid.UUID]]:
    grouped: dict[uuid.UUID, list[uuid.UUID]] = {}
    for tenant_id, service_call_id in keys:
        grouped.setdefault(tenant_id, []).append(service_call_id)
    return grouped


# Of a durable timer: what it was set to. Of any other call the body is not read.
_EXECUTE_AT = Case(
    When(external_id__isnull=False, then=KeyTextTransform("executeAt", KeyTransform("body", "request_spec")))
)


def _listed(tenant_id: uuid.UUID, ids: list[uuid.UUID]) -> list[dict[str, Any]]:
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id__in=ids)
    rows = calls.values(
        *LISTED,
        method=KeyTextTransform("method", "request_spec"),
        url=KeyTextTransform("url", "request_spec"),
        execute_at=_EXECUTE_AT,
    )
    tags = tags_of(tenant_id, ids)
    return [{**row, "tags": tags.get(row["service_call_id"], [])} for row in rows]


def _positions(wanted: CallFilter, order: Order, after: Position | None, limit: int) -> list[Position]:
    calls = ServiceCall.objects.for_tenant(wanted.tenant_id)
    narrow = narrowed(wanted)
    if narrow is not None:
        return _in_order(narrow, order, after, limit, Aside)
    few = few_of(wanted)
    if few is not None:
        return _in_order(calls.filter(aside(wanted), service_call_id__in=few), order, after, limit, Aside)
    if order.column == "submitted_at" and _walks_by_tag(wanted):
        return _walk_tag(wanted, order.descending, after, limit)
    if order.column == "due_at":
        return _walk_due(calls, wanted, order, after, limit)
    return _in_order(calls.filter(_sought(wanted)), order, after, limit)


def _in_order(
    calls: QuerySet[Any],
    order: Order,
    after: Position | None,
    limit: int,
    wrapped: Callable[[F], Any] = lambda column: column,
) -> list[Position]:
    """`wrapped` is Aside where the rows are few: then they are to be sorted, and no index is to be walked."""
    names = order.column, "service_call_id"
    first, last = (wrapped(F(name)) for name in names)
    if after is not None:
        calls = calls.filter(_beyond(first, last, order.descending, after))
    ordered = calls.order_by(*(OrderBy(column, descending=order.descending) for column in (first, last)))
    return list(ordered.values_list(*names)[:limit])


def _beyond(first: Any, last: Any, descending: bool, after: Position) -> Q:
    beyond = lookups.LessThan if descending else lookups.GreaterThan
    # The first condition says nothing new: it is what an index can begin at.
    begin = (lookups.LessThanOrEqual if descending else lookups.GreaterThanOrEqual)(first, after[0])
    tie = Q(lookups.Exact(first, after[0]), beyond(last, after[1]))
    return Q(begin) & (Q(beyond(first, after[0])) | tie)


# --- step 1: few ----------------------------------------------------------------------------------------------


def narrowed(wanted: CallFilter) -> QuerySet[Any] | None:
    """The rows, if they are sought by an id that only a few calls share."""
    for column in NARROW:
        if (value := getattr(wanted, column)) is not None:
            calls = ServiceCall.objects.for_tenant(wanted.tenant_id).filter(**{column: value})
            return calls.filter(aside(wanted, but=column)).order_by()
    return None


def few_of(wanted: CallFilter) -> list[uuid.UUID] | None:
    """The ids of all calls that pass some one filter, if they are few."""
    found = few_by(wanted)
    return None if found is None else list(set(found.values_list("service_call_id", flat=True)))


def few_by(wanted: CallFilter) -> QuerySet[Any] | None:
    """The rows that pass some one filter, if they are few."""
    for found in by_each_filter(wanted):
        found = found.order_by()
        # Counted first: that takes the index alone.
        if found.values_list("tenant_id")[: FEW + 1].count() <= FEW:
            return found
    return None


def by_each_filter(wanted: CallFilter) -> Iterator[QuerySet[Any]]:
    tags = ServiceCallTag.objects.for_tenant(wanted.tenant_id)
    calls = ServiceCall.objects.for_tenant(wanted.tenant_id)
    if wanted.any_tag and wanted.tags:
        yield tags.filter(tag__in=wanted.tags)
    else:
        yield from (tags.filter(tag=tag) for tag in sorted(wanted.tags))
    if wanted.statuses:
        yield calls.filter(status__in=wanted.statuses, **date_range("due_at", wanted.due_from, wanted.due_to))
    elif wanted.due_from or wanted.due_to:
        every = sorted(Status.values)
        yield calls.filter(status__in=every, **date_range("due_at", wanted.due_from, wanted.due_to))
    if wanted.submitted_from or wanted.submitted_to:
        yield calls.filter(**date_range("submitted_at", wanted.submitted_from, wanted.submitted_to))
    if wanted.timers:
        within = {} if wanted.namespace is None else {"namespace": wanted.namespace}
        yield calls.filter(external_id__isnull=False, **within)
    for column in ("host", "name", "namespace"):
        value = getattr(wanted, column)
        if value is not None and value != DEFAULT_NAMESPACE:
            yield calls.filter(**{column: value})


# --- step 2: a walk -------------------------------------------------------------------------------------------


def _walks_by_tag(wanted: CallFilter) -> bool:
    only_tags = len(wanted.tags) == 1 or (bool(wanted.tags) and not wanted.any_tag)
    return only_tags and wanted.submitted_from is None and wanted.submitted_to is None


def _walk_tag(wanted: CallFilter, descending: bool, after: Position | None, limit: int) -> list[Position]:
    tag, *others = sorted(wanted.tags)
    rows = ServiceCallTag.objects.for_tenant(wanted.tenant_id).filter(tag=tag)
    for other in others:
        rows = rows.filter(_has_tag(wanted, {other}))
    rows = rows.filter(aside(wanted, "service_call__", tags=False))
    if after is not None:
        rows = rows.filter(**{f"service_call_id__{'lt' if descending else 'gt'}": after[-1]})
    ordered = rows.order_by("-service_call_id" if descending else "service_call_id")
    return list(ordered.values_list("service_call__submitted_at", "service_call_id")[:limit])


def _walk_due(
    calls: QuerySet[Any], wanted: CallFilter, order: Order, after: Position | None, limit: int
) -> list[Position]:
    """The index is by status first: one walk for each, merged."""
    within = date_range("due_at", wanted.due_from, wanted.due_to)
    walks = [
        _in_order(calls.filter(aside(wanted, but="status"), status=status, **within), order, after, limit)
        for status in sorted(wanted.statuses or Status.values)
    ]
    return list(heapq.merge(*walks, reverse=order.descending))[:limit]


def _sought(wanted: CallFilter) -> Q:
    """For a walk by submission: by its own index, or by the host's or the name's, which are in its order too."""
    for column in ("host", "name"):
        if (value := getattr(wanted, column)) is not None:
            return Q(**{column: value}) & aside(wanted, but=column)
    return Q(**date_range("submitted_at", wanted.submitted_from, wanted.submitted_to)) & aside(wanted)


# --- conditions -----------------------------------------------------------------------------------------------


def aside(wanted: CallFilter, path: str = "", *, tags: bool = True, but: str = "") -> Q:
    """All filters but those that the walk's own index answers."""
    conditions = Q()
    if wanted.statuses and but != "status":
        conditions &= _compared(path + "status", "In", sorted(wanted.statuses))
    for column in ("host", "name", "namespace", *NARROW):
        value = getattr(wanted, column)
        if value is not None and but != column:
            conditions &= _compared(path + column, "Exact", value)
    for column, least, most in (
        ("due_at", wanted.due_from, wanted.due_to),
        ("submitted_at", wanted.submitted_from, wanted.submitted_to),
    ):
        if least is not None:
            conditions &= _compared(path + column, "GreaterThanOrEqual", least)
        if most is not None:
            conditions &= _compared(path + column, "LessThan", most)
    if wanted.timers:
        conditions &= Q(**{path + "external_id__isnull": False})
    if wanted.tags and tags:
        for group in [wanted.tags] if wanted.any_tag else [{tag} for tag in sorted(wanted.tags)]:
            conditions &= _has_tag(wanted, group)
    return conditions


def _compared(column: str, lookup: str, value: Any) -> Q:
    return Q(getattr(lookups, lookup)(Aside(F(column)), value))


def _has_tag(wanted: CallFilter, tags: Collection[str]) -> Q:
    rows = ServiceCallTag.objects.for_tenant(wanted.tenant_id)
    return Q(Exists(rows.filter(service_call_id=OuterRef("service_call_id"), tag__in=sorted(tags))))


def date_range(column: str, least: datetime | None, most: datetime | None) -> dict[str, datetime]:
    bounds = {f"{column}__gte": least, f"{column}__lt": most}
    return {name: bound for name, bound in bounds.items() if bound is not None}

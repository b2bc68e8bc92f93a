"""Count the calls of a list, in all and by status. No count reads more than a limited number of index entries or rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import Case, Count, IntegerField, Model, QuerySet, Sum, Value, When

from eventservice.db.bounded_count import MAX_COUNTED
from eventservice.tenants.models import DEFAULT_NAMESPACE
from orchestration.models import RETRYING, ServiceCall
from orchestration.queries.call_lists import (
    CallFilter,
    Order,
    build_range,
    list_few_ids,
    list_keys,
    match_without_index,
    select_by_each_part,
    select_by_rare_id,
    select_few,
)
from orchestration.states import Status

# Where no index has the answer, the matching calls among this many of the latest are counted.
MAX_ROWS_SCANNED = 5_000
# Beside the statuses, counts have one for the calls that wait for another attempt.
RETRYING_KEY = "Retrying"
# Each count is a subquery of one statement.
MAX_COUNTS_PER_STATEMENT = 100


@dataclass(frozen=True, slots=True)
class CallCounts:
    """Counts above MAX_COUNTED are MAX_COUNTED + 1."""

    by_status: Mapping[str, int]
    retrying: int  # of the Scheduled ones, those that wait for another attempt
    # Whether these count the calls that match the other filters. If not, they count all calls of the tenants.
    filtered: bool
    total: int
    exact: bool  # whether `total` is exact, or a lower bound


def count_calls(filters: Sequence[CallFilter]) -> CallCounts:
    """Count the calls of a list. Several filters must differ in their tenants alone."""
    counts = _count_by_status(filters)
    if counts is not None:
        total = _sum_chosen(filters[0], counts) if filters else 0
        retrying = counts.pop(RETRYING_KEY, 0)
        return CallCounts(counts, retrying, filtered=True, total=total, exact=True)
    alone = _count_statuses_by_index([CallFilter(one.tenant_id) for one in filters])
    total, exact = _count_all(filters)
    retrying = alone.pop(RETRYING_KEY, 0)
    return CallCounts(alone, retrying, filtered=False, total=total, exact=exact)


def _sum_chosen(chosen: CallFilter, counts: Mapping[str, int]) -> int:
    statuses = chosen.statuses or Status.values
    if chosen.retrying:
        return counts.get(RETRYING_KEY, 0) if Status.SCHEDULED in statuses else 0
    return sum(counts.get(status, 0) for status in statuses)


def count_submitted_since(filters: Sequence[CallFilter], since: datetime, max_count: int) -> int:
    """Count the calls of a list that have been submitted since then, up to `max_count`."""
    since_then = [
        replace(one, submitted_from=max(filter(None, (since, one.submitted_from)))) for one in filters
    ]
    return len(list_keys(since_then, Order("submitted_at", descending=False), max_count))


def count_by_tenant(filters: Sequence[CallFilter]) -> Sequence[int | None]:
    """Return the number of each tenant's calls, or None where the count needs more than one index."""
    rows: list[QuerySet[Model]] = []
    for one in filters:
        indexed = list(select_by_each_part(one)) or [ServiceCall.objects.for_tenant(one.tenant_id)]
        if len(indexed) > 1 or _has_unindexed_part(one) or select_by_rare_id(one) is not None:
            return [None] * len(filters)
        rows += indexed
    return _count_each(rows)


def _has_unindexed_part(one: CallFilter) -> bool:
    return one.namespace is not None or one.port is not None


# --- by status --------------------------------------------------------------------------------------------------


def _count_by_status(filters: Sequence[CallFilter]) -> Counter[str] | None:
    """Count by status, and under RETRYING_KEY, the calls that match all other filters. Return None if there is no cheap
    way."""
    free = [replace(one, statuses=frozenset(), retrying=False) for one in filters]
    if all(_is_by_due_time(one) for one in free):
        return _count_statuses_by_index(free)
    if any(select_by_rare_id(one) is None and select_few(one) is None for one in free):
        return None
    found: Counter[str] = Counter()
    for one in free:
        rows = _select_few(one)
        for status, attempt in rows.values_list("status", "attempt") if rows is not None else ():
            found[status] += 1
            found[RETRYING_KEY] += status == Status.SCHEDULED and attempt > 0
    return found


def _is_by_due_time(free: CallFilter) -> bool:
    return replace(free, due_from=None, due_to=None) == CallFilter(free.tenant_id)


def _count_statuses_by_index(free: Sequence[CallFilter]) -> Counter[str]:
    keys: list[str] = []
    rows: list[QuerySet[Model]] = []
    for one in free:
        calls = ServiceCall.objects.for_tenant(one.tenant_id)
        within = build_range("due_at", one.due_from, one.due_to)
        keys += [*Status.values, RETRYING_KEY]
        rows += [calls.filter(status=status, **within) for status in Status.values]
        rows.append(calls.filter(RETRYING & match_without_index(one)))
    found: Counter[str] = Counter()
    for key, count in zip(keys, _count_each(rows), strict=True):
        found[key] += count
    return found


def _select_few(free: CallFilter) -> QuerySet[Model] | None:
    rare = select_by_rare_id(free)
    if rare is not None:
        return rare[: MAX_COUNTED + 1]
    few = list_few_ids(free)
    calls = ServiceCall.objects.for_tenant(free.tenant_id).order_by()
    return None if few is None else calls.filter(match_without_index(free), service_call_id__in=few)


# --- all ----------------------------------------------------------------------------------------------------------


def _count_all(filters: Sequence[CallFilter]) -> tuple[int, bool]:
    total, exact = 0, True
    for one in filters:
        count, is_all = _count_of_tenant(one)
        total, exact = total + count, exact and is_all
        if total > MAX_COUNTED:
            return total, True
    return total, exact


def _count_of_tenant(call_filter: CallFilter) -> tuple[int, bool]:
    rows = _select_few(call_filter)
    if rows is not None:
        return rows.values_list("tenant_id").count(), True
    indexed = list(select_by_each_part(call_filter))
    has_index = call_filter.namespace != DEFAULT_NAMESPACE and call_filter.port is None
    if len(indexed) == 1 and has_index and not call_filter.any_tag:
        return _count_each(indexed)[0], True
    return _count_latest(call_filter)


def _count_latest(call_filter: CallFilter) -> tuple[int, bool]:
    """Count the matching calls among the latest ones. Return whether those are all calls, too."""
    matches = Case(
        When(match_without_index(call_filter), then=Value(1)), default=Value(0), output_field=IntegerField()
    )
    latest = ServiceCall.objects.for_tenant(call_filter.tenant_id).order_by("-submitted_at")
    scanned = latest.annotate(matches=matches).values("matches")[:MAX_ROWS_SCANNED]
    found = scanned.aggregate(matching=Sum("matches"), seen=Count("*"))
    return found["matching"] or 0, found["seen"] < MAX_ROWS_SCANNED


def _count_each(rows: Sequence[QuerySet[Model]]) -> list[int]:
    """Count each up to MAX_COUNTED + 1, many in one statement."""
    counts: list[int] = []
    for start in range(0, len(rows), MAX_COUNTS_PER_STATEMENT):
        counts += _count_in_one_statement(rows[start : start + MAX_COUNTS_PER_STATEMENT])
    return counts


def _count_in_one_statement(rows: Sequence[QuerySet[Model]]) -> Sequence[int]:
    parts: list[str] = []
    params: list[Any] = []
    for one in rows:
        sql, values = one.order_by().values_list("tenant_id")[: MAX_COUNTED + 1].query.sql_with_params()
        parts.append(f"(SELECT COUNT(*) FROM ({sql}) AS counted)")
        params += values
    with connection.cursor() as cursor:
        cursor.execute("SELECT " + ", ".join(parts), params)
        found: Sequence[int] = cursor.fetchone()
    return found

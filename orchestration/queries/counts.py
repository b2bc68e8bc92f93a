"""How many calls a list has. No count reads more than so many entries of an index, or so many rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db import connection
from django.db.models import Case, Count, IntegerField, QuerySet, Sum, Value, When

from eventservice.db.bounded_count import MAX_COUNTED
from eventservice.tenants.models import DEFAULT_NAMESPACE
from orchestration.models import ServiceCall
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

# Beyond, nobody needs to know how many exactly: one more says "and more".
# When no index knows: the latest calls, of which those that pass are counted.
MAX_ROWS_SCANNED = 5_000
# Of one statement. Each of them is a subquery.
MAX_COUNTS_PER_STATEMENT = 100


@dataclass(frozen=True, slots=True)
class CallCounts:
    by_status: Mapping[str, int]
    # Whether `by_status` is within the other filters; if not, it is of all calls of the tenants.
    filtered: bool
    total: int
    # If not, there are at least so many.
    exact: bool


def count_calls(wanted: Sequence[CallFilter]) -> CallCounts:
    """One filter for several tenants."""
    by_status = _count_by_status(wanted)
    if by_status is not None:
        total = sum(by_status[status] for status in wanted[0].statuses or Status.values) if wanted else 0
        return CallCounts(by_status, filtered=True, total=total, exact=True)
    alone = [CallFilter(one.tenant_id) for one in wanted]
    total, exact = _count_all(wanted)
    return CallCounts(_count_statuses_by_index(alone), filtered=False, total=total, exact=exact)


def count_submitted_since(wanted: Sequence[CallFilter], since: Any, most: int) -> int:
    """How many of these calls have been submitted since, counted up to `most`."""
    later = [replace(one, submitted_from=max(filter(None, (since, one.submitted_from)))) for one in wanted]
    return len(list_keys(later, Order("submitted_at", descending=False), most))


def count_by_tenant(wanted: Sequence[CallFilter]) -> Sequence[int | None]:
    """How many calls each tenant has; None: no one index knows."""
    rows: list[QuerySet[Any]] = []
    for one in wanted:
        indexed = list(select_by_each_part(one)) or [ServiceCall.objects.for_tenant(one.tenant_id)]
        if len(indexed) > 1 or one.namespace is not None or select_by_rare_id(one) is not None:
            return [None] * len(wanted)
        rows += indexed
    return _count_each(rows)


# --- by status --------------------------------------------------------------------------------------------------


def _count_by_status(wanted: Sequence[CallFilter]) -> Counter[str] | None:
    """Within all filters but that of the status; None: there is no cheap way to know."""
    free = [replace(one, statuses=frozenset()) for one in wanted]
    if all(_is_by_due_time(one) for one in free):
        return _count_statuses_by_index(free)
    if any(select_by_rare_id(one) is None and select_few(one) is None for one in free):
        return None
    found: Counter[str] = Counter()
    for one in free:
        rows = _select_few(one)
        found += Counter(rows.values_list("status", flat=True) if rows is not None else ())
    return found


def _is_by_due_time(free: CallFilter) -> bool:
    return replace(free, due_from=None, due_to=None) == CallFilter(free.tenant_id)


def _count_statuses_by_index(free: Sequence[CallFilter]) -> Counter[str]:
    asked = [(one, status) for one in free for status in Status.values]
    counts = _count_each(
        [
            ServiceCall.objects.for_tenant(one.tenant_id).filter(
                status=status, **build_range("due_at", one.due_from, one.due_to)
            )
            for one, status in asked
        ]
    )
    found: Counter[str] = Counter()
    for (_, status), count in zip(asked, counts, strict=True):
        found[status] += count
    return found


def _select_few(free: CallFilter) -> QuerySet[Any] | None:
    narrow = select_by_rare_id(free)
    if narrow is not None:
        return narrow[: MAX_COUNTED + 1]
    few = list_few_ids(free)
    calls = ServiceCall.objects.for_tenant(free.tenant_id).order_by()
    return None if few is None else calls.filter(match_without_index(free), service_call_id__in=few)


# --- all ----------------------------------------------------------------------------------------------------------


def _count_all(wanted: Sequence[CallFilter]) -> tuple[int, bool]:
    total, exact = 0, True
    for one in wanted:
        count, is_all = _count_of_tenant(one)
        total, exact = total + count, exact and is_all
        if total > MAX_COUNTED:
            return total, True
    return total, exact


def _count_of_tenant(wanted: CallFilter) -> tuple[int, bool]:
    rows = _select_few(wanted)
    if rows is not None:
        return rows.values_list("tenant_id").count(), True
    indexed = list(select_by_each_part(wanted))
    if len(indexed) == 1 and wanted.namespace != DEFAULT_NAMESPACE and not wanted.any_tag:
        return _count_each(indexed)[0], True
    return _count_latest(wanted)


def _count_latest(wanted: CallFilter) -> tuple[int, bool]:
    """At least so many: of the latest calls, however many there are before them."""
    passes = Case(
        When(match_without_index(wanted), then=Value(1)), default=Value(0), output_field=IntegerField()
    )
    latest = ServiceCall.objects.for_tenant(wanted.tenant_id).order_by("-submitted_at")
    looked = latest.annotate(passes=passes).values("passes")[:MAX_ROWS_SCANNED]
    found = looked.aggregate(passed=Sum("passes"), seen=Count("*"))
    return found["passed"] or 0, found["seen"] < MAX_ROWS_SCANNED


def _count_each(rows: Sequence[QuerySet[Any]]) -> list[int]:
    """How many each has, up to one more than MAX_COUNTED: in one statement, for there are many to ask for."""
    counts: list[int] = []
    for start in range(0, len(rows), MAX_COUNTS_PER_STATEMENT):
        counts += _count_in_one_statement(rows[start : start + MAX_COUNTS_PER_STATEMENT])
    return counts


def _count_in_one_statement(rows: Sequence[QuerySet[Any]]) -> Sequence[int]:
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

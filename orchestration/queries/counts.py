"""How many calls a list has. No count reads more than so many entries of an index, or so many rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db import connection
from django.db.models import Case, Count, IntegerField, QuerySet, Sum, Value, When

from eventservice.db.bounded_count import MOST_COUNTED
from eventservice.tenants.models import DEFAULT_NAMESPACE
from orchestration.models import ServiceCall
from orchestration.queries.calls import (
    CallFilter,
    Order,
    aside,
    by_each_filter,
    date_range,
    few_by,
    few_of,
    keys_of,
    narrowed,
)
from orchestration.states import Status

# Beyond, nobody needs to know how many exactly: one more says "and more".
# When no index knows: the latest calls, of which those that pass are counted.
MOST_LOOKED_THROUGH = 5_000
# Of one statement. Each of them is a subquery.
MOST_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Totals:
    by_status: Mapping[str, int]
    # Whether `by_status` is within the other filters; if not, it is of all calls of the tenants.
    narrowed: bool
    total: int
    # If not, there are at least so many.
    exact: bool


def totals(wanted: Sequence[CallFilter]) -> Totals:
    """One filter for several tenants."""
    by_status = _within(wanted)
    if by_status is not None:
        total = sum(by_status[status] for status in wanted[0].statuses or Status.values) if wanted else 0
        return Totals(by_status, narrowed=True, total=total, exact=True)
    alone = [CallFilter(one.tenant_id) for one in wanted]
    total, exact = _totals(wanted)
    return Totals(_by_index(alone), narrowed=False, total=total, exact=exact)


def newer(wanted: Sequence[CallFilter], since: Any, most: int) -> int:
    """How many of these calls have been submitted since, counted up to `most`."""
    later = [replace(one, submitted_from=max(filter(None, (since, one.submitted_from)))) for one in wanted]
    return len(keys_of(later, Order("submitted_at", descending=False), most))


def each_by_index(wanted: Sequence[CallFilter]) -> Sequence[int | None]:
    """How many calls each tenant has; None: no one index knows."""
    rows: list[QuerySet[Any]] = []
    for one in wanted:
        indexed = list(by_each_filter(one)) or [ServiceCall.objects.for_tenant(one.tenant_id)]
        if len(indexed) > 1 or one.namespace is not None or narrowed(one) is not None:
            return [None] * len(wanted)
        rows += indexed
    return _counts(rows)


# --- by status --------------------------------------------------------------------------------------------------


def _within(wanted: Sequence[CallFilter]) -> Counter[str] | None:
    """Within all filters but that of the status; None: there is no cheap way to know."""
    free = [replace(one, statuses=frozenset()) for one in wanted]
    if all(_is_by_due_time(one) for one in free):
        return _by_index(free)
    if any(narrowed(one) is None and few_by(one) is None for one in free):
        return None
    found: Counter[str] = Counter()
    for one in free:
        rows = _few_rows(one)
        found += Counter(rows.values_list("status", flat=True) if rows is not None else ())
    return found


def _is_by_due_time(free: CallFilter) -> bool:
    return replace(free, due_from=None, due_to=None) == CallFilter(free.tenant_id)


def _by_index(free: Sequence[CallFilter]) -> Counter[str]:
    asked = [(one, status) for one in free for status in Status.values]
    counts = _counts(
        [
            ServiceCall.objects.for_tenant(one.tenant_id).filter(
                status=status, **date_range("due_at", one.due_from, one.due_to)
            )
            for one, status in asked
        ]
    )
    found: Counter[str] = Counter()
    for (_, status), count in zip(asked, counts, strict=True):
        found[status] += count
    return found


def _few_rows(free: CallFilter) -> QuerySet[Any] | None:
    narrow = narrowed(free)
    if narrow is not None:
        return narrow[: MOST_COUNTED + 1]
    few = few_of(free)
    calls = ServiceCall.objects.for_tenant(free.tenant_id).order_by()
    return None if few is None else calls.filter(aside(free), service_call_id__in=few)


# --- all ----------------------------------------------------------------------------------------------------------


def _totals(wanted: Sequence[CallFilter]) -> tuple[int, bool]:
    total, exact = 0, True
    for one in wanted:
        count, is_all = _total(one)
        total, exact = total + count, exact and is_all
        if total > MOST_COUNTED:
            return total, True
    return total, exact


def _total(wanted: CallFilter) -> tuple[int, bool]:
    rows = _few_rows(wanted)
    if rows is not None:
        return rows.values_list("tenant_id").count(), True
    indexed = list(by_each_filter(wanted))
    if len(indexed) == 1 and wanted.namespace != DEFAULT_NAMESPACE and not wanted.any_tag:
        return _counts(indexed)[0], True
    return _looked_through(wanted)


def _looked_through(wanted: CallFilter) -> tuple[int, bool]:
    """At least so many: of the latest calls, however many there are before them."""
    passes = Case(When(aside(wanted), then=Value(1)), default=Value(0), output_field=IntegerField())
    latest = ServiceCall.objects.for_tenant(wanted.tenant_id).order_by("-submitted_at")
    looked = latest.annotate(passes=passes).values("passes")[:MOST_LOOKED_THROUGH]
    found = looked.aggregate(passed=Sum("passes"), seen=Count("*"))
    return found["passed"] or 0, found["seen"] < MOST_LOOKED_THROUGH


def _counts(rows: Sequence[QuerySet[Any]]) -> list[int]:
    """How many each has, up to one more than MOST_COUNTED: in one statement, for there are many to ask for."""
    counts: list[int] = []
    for start in range(0, len(rows), MOST_AT_ONCE):
        counts += _counts_at_once(rows[start : start + MOST_AT_ONCE])
    return counts


def _counts_at_once(rows: Sequence[QuerySet[Any]]) -> Sequence[int]:
    parts: list[str] = []
    params: list[Any] = []
    for one in rows:
        sql, values = one.order_by().values_list("tenant_id")[: MOST_COUNTED + 1].query.sql_with_params()
        parts.append(f"(SELECT COUNT(*) FROM ({sql}) AS counted)")
        params += values
    with connection.cursor() as cursor:
        cursor.execute("SELECT " + ", ".join(parts), params)
        found: Sequence[int] = cursor.fetchone()
    return found

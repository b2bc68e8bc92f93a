"""Find the tenants that have certain calls, by index lookups for each tenant, however many calls there are."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Model, OuterRef, Q, QuerySet, Subquery, lookups

from eventservice.db.sql import orders_by_code_point
from eventservice.tenants.models import Namespace, Tenant
from orchestration.models import RETRYING, ServiceCall, ServiceCallTag
from orchestration.queries.call_lists import RARE_ID_COLUMNS, CallFilter, build_range, select_by_prefix
from orchestration.states import Status

EACH_TENANT: Any = OuterRef("pk")


def list_tenants_with_calls(call_filter: CallFilter, limit: int) -> dict[uuid.UUID, str]:
    """Return the names of tenants that may have matching calls, by id, in the order of their names. Each part of the
    filter is checked on its own, so this is an upper bound."""
    return _filter_tenants(Tenant.objects.all(), _build_index_lookups(call_filter), limit)


def list_tenants_with_id(
    column: str, value: uuid.UUID, tenant: uuid.UUID | None, limit: int
) -> dict[uuid.UUID, str]:
    """Return the names of the tenants, or of the one `tenant`, that have a call with this value in an id column."""
    tenants = Tenant.objects.all() if tenant is None else Tenant.objects.filter(pk=tenant)
    calls = ServiceCall.objects.for_tenant(EACH_TENANT)
    return _filter_tenants(tenants, [[calls.filter(**{column: value})]], limit)


def _build_index_lookups(call_filter: CallFilter) -> Iterator[list[QuerySet[Model]]]:
    """Yield for each part of the filter the queries one of which must find a call.

    They are in the order of their index. Without it, a planner that expects to find a row soon reads all rows if there is
    none. MySQL does not see that a column which is compared with the tenant's is constant, so the order begins with the
    index's first column.
    """
    calls, tags = ServiceCall.objects.for_tenant(EACH_TENANT), ServiceCallTag.objects.for_tenant(EACH_TENANT)
    for tag in sorted(call_filter.tags):
        yield [tags.filter(tag=tag).order_by("tenant_id", "service_call_id")]
    if call_filter.retrying:
        yield [calls.filter(RETRYING).order_by("tenant_id", "attempt")]
    due = build_range("due_at", call_filter.due_from, call_filter.due_to)
    if call_filter.statuses or due:
        statuses = sorted(call_filter.statuses or Status.values)
        yield [calls.filter(status=status, **due).order_by("tenant_id", "due_at") for status in statuses]
    for column in ("host", "name"):
        if (value := getattr(call_filter, column)) is not None:
            yield [calls.filter(**{column: value}).order_by("tenant_id", "submitted_at")]
    for column, found in select_by_prefix(calls, call_filter):
        # MariaDB takes no range of an index for each tenant. PostgreSQL's index for prefixes has an order of its own.
        yield [found.order_by("tenant_id", column) if orders_by_code_point() else found]
    for column in RARE_ID_COLUMNS:
        if (value := getattr(call_filter, column)) is not None:
            yield [calls.filter(**{column: value})]
    if call_filter.namespace is not None:  # not in any index of calls
        yield [Namespace.objects.for_tenant(EACH_TENANT).filter(name=call_filter.namespace)]
    submitted = build_range("submitted_at", call_filter.submitted_from, call_filter.submitted_to)
    yield [calls.filter(**submitted).order_by("tenant_id", "submitted_at")]


def _filter_tenants(
    tenants: QuerySet[Model], looks: Iterable[list[QuerySet[Model]]], limit: int
) -> dict[uuid.UUID, str]:
    for places in looks:
        # Not Exists: a planner may turn it into a join, which reads the calls of all tenants.
        firsts = [Subquery(rows.values("tenant_id")[:1]) for rows in places]
        tenants = tenants.filter(reduce(or_, (Q(lookups.IsNull(first, False)) for first in firsts)))
    return dict(tenants.order_by("name").values_list("pk", "name")[:limit])

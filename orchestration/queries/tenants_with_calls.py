"""Which tenants have calls like these. Each has indexes of its own: one look at them tells, however many calls there are."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import OuterRef, Q, QuerySet, Subquery, lookups

from eventservice.tenants.models import Namespace, Tenant
from orchestration.models import ServiceCall, ServiceCallTag
from orchestration.queries.call_lists import RARE_ID_COLUMNS, CallFilter, build_range
from orchestration.states import Status

OF_EACH: Any = OuterRef("pk")


def list_tenants_with_calls(wanted: CallFilter, most: int) -> dict[uuid.UUID, str]:
    """Those that have calls which pass each of the filters, if not all at once: no other has any. By name."""
    return _filter_tenants(Tenant.objects.all(), _build_index_lookups(wanted), most)


def list_tenants_with_id(
    column: str, value: uuid.UUID, tenant: uuid.UUID | None, most: int
) -> dict[uuid.UUID, str]:
    """Those that have calls with this value, which is rare; or the one tenant, if it has."""
    tenants = Tenant.objects.all() if tenant is None else Tenant.objects.filter(pk=tenant)
    calls = ServiceCall.objects.for_tenant(OF_EACH)
    return _filter_tenants(tenants, [[calls.filter(**{column: value})]], most)


def _build_index_lookups(wanted: CallFilter) -> Iterator[list[QuerySet[Any]]]:
    """For each filter, where its calls are: in one of these. In the order of the index, which is there for that: to
    find none, a planner that hopes to find one soon would read all.
    """
    calls, tags = ServiceCall.objects.for_tenant(OF_EACH), ServiceCallTag.objects.for_tenant(OF_EACH)
    for tag in sorted(wanted.tags):
        yield [tags.filter(tag=tag).order_by("service_call_id")]
    due = build_range("due_at", wanted.due_from, wanted.due_to)
    if wanted.statuses or due:
        statuses = sorted(wanted.statuses or Status.values)
        yield [calls.filter(status=status, **due).order_by("due_at") for status in statuses]
    for column in ("host", "name"):
        if (value := getattr(wanted, column)) is not None:
            yield [calls.filter(**{column: value}).order_by("submitted_at")]
    for column in RARE_ID_COLUMNS:
        if (value := getattr(wanted, column)) is not None:
            yield [calls.filter(**{column: value})]
    if wanted.namespace is not None:  # no index of calls has it
        yield [Namespace.objects.for_tenant(OF_EACH).filter(name=wanted.namespace)]
    submitted = build_range("submitted_at", wanted.submitted_from, wanted.submitted_to)
    yield [calls.filter(**submitted).order_by("submitted_at")]


def _filter_tenants(
    tenants: QuerySet[Any], looks: Iterable[list[QuerySet[Any]]], most: int
) -> dict[uuid.UUID, str]:
    for places in looks:
        # Of an Exists a planner may make a join, which reads all that there is of all tenants.
        firsts = [Subquery(rows.values("tenant_id")[:1]) for rows in places]
        tenants = tenants.filter(reduce(or_, (Q(lookups.IsNull(first, False)) for first in firsts)))
    return dict(tenants.order_by("name").values_list("pk", "name")[:most])

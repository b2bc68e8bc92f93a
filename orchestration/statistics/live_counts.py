"""Counts of what is scheduled and running now, for the dashboard, doctor and metrics. Every count stops at a maximum."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Exists, Min, Model, OuterRef, QuerySet, Subquery

from eventservice.db.bounded_count import count_capped
from eventservice.tenants.directory import list_tenant_ids
from eventservice.tenants.models import Tenant
from orchestration.models import RETRYING, ServiceCall
from orchestration.states import Status

MAX_LOST_LISTED = 3
BACKLOG_HORIZONS = {
    "within1m": timedelta(minutes=1),
    "within5m": timedelta(minutes=5),
    "within1h": timedelta(hours=1),
    "within24h": timedelta(hours=24),
}


@dataclass(frozen=True, slots=True)
class LostCall:
    """A Running call whose deadline has passed: the end of its attempt was not recorded."""

    tenant_id: uuid.UUID
    service_call_id: uuid.UUID
    name: str
    deadline_at: datetime


@dataclass(frozen=True, slots=True)
class LiveCounts:
    running: int
    retrying: int  # calls that wait for another attempt
    backlog: dict[str, int]  # as count_backlog returns it
    oldest_overdue: timedelta
    lost: list[LostCall]  # the first MAX_LOST_LISTED
    lost_count: int

    @property
    def overdue(self) -> int:
        return self.backlog["overdue"]


def read_live_counts(tenant_id: uuid.UUID | None, now: datetime) -> LiveCounts:
    """Count the calls of one tenant, or of all."""
    calls = select_calls(tenant_id)
    lost = calls.filter(status=Status.RUNNING, deadline_at__lt=now).order_by("deadline_at")
    listed = lost.values_list("tenant_id", "service_call_id", "name", "deadline_at")[:MAX_LOST_LISTED]
    return LiveCounts(
        running=count_capped(calls.filter(status=Status.RUNNING)),
        retrying=count_capped(calls.filter(RETRYING)),
        backlog=count_backlog(calls.filter(status=Status.SCHEDULED), now, count_capped),
        oldest_overdue=find_oldest_overdue(list_tenant_ids() if tenant_id is None else [tenant_id], now),
        lost=[LostCall(tenant, call, name, at) for tenant, call, name, at in listed if at is not None],
        lost_count=count_capped(lost),
    )


def has_calls(tenant_id: uuid.UUID | None) -> bool:
    return select_calls(tenant_id).exists()


def has_running_calls() -> bool:
    return ServiceCall.across_tenants.filter(status=Status.RUNNING, deadline_at__isnull=False).exists()


def list_overdue_tenants(due_before: datetime) -> list[uuid.UUID]:
    """Return the tenants that have calls which have been due since before then. It takes one index lookup per tenant."""
    calls = ServiceCall.objects.for_tenant(OuterRef("pk"))  # type: ignore[arg-type]
    overdue = Exists(calls.filter(status=Status.SCHEDULED, due_at__lt=due_before))
    return list(Tenant.objects.filter(overdue).order_by("pk").values_list("pk", flat=True))


def select_calls(tenant_id: uuid.UUID | None) -> QuerySet[ServiceCall]:
    """Select the calls of one tenant, or of all by their ids, because the indexes begin with the tenant's id."""
    if tenant_id is not None:
        return ServiceCall.objects.for_tenant(tenant_id).order_by()
    return ServiceCall.across_tenants.filter(tenant_id__in=list_tenant_ids()).order_by()


def count_backlog(
    scheduled: QuerySet[Model], now: datetime, count: Callable[[QuerySet[Model]], int]
) -> dict[str, int]:
    """Return how many calls are overdue, are due within each of BACKLOG_HORIZONS but not within the one before, and
    later."""
    counts = {"overdue": count(scheduled.filter(due_at__lte=now))}
    begin = now
    for name, horizon in BACKLOG_HORIZONS.items():
        counts[name] = count(scheduled.filter(due_at__gt=begin, due_at__lte=now + horizon))
        begin = now + horizon
    return {**counts, "later": count(scheduled.filter(due_at__gt=begin))}


def find_oldest_overdue(tenant_ids: Collection[uuid.UUID], now: datetime) -> timedelta:
    """Return for how long the oldest overdue call of these tenants has been due.

    It takes one index lookup per tenant. A planner would search for the minimum among everything that is overdue.
    """
    calls = ServiceCall.objects.for_tenant(OuterRef("pk"))  # type: ignore[arg-type]
    overdue = calls.filter(status=Status.SCHEDULED, due_at__lte=now)
    first = Subquery(overdue.order_by("due_at").values("due_at")[:1])
    found = Tenant.objects.filter(pk__in=tenant_ids).annotate(first=first).aggregate(oldest=Min("first"))
    return now - (found["oldest"] or now)

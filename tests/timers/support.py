"""Create timers with their calls, and nodes that poll for them."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction

from eventservice.kernel.ids import new_id
from eventservice.tenants.directory import list_tenant_ids
from eventservice.tenants.models import Tenant
from orchestration.models import ServiceCall
from tests.factories import ServiceCallFactory, TenantFactory, TimerFactory
from timers.membership import Membership
from timers.models import TimerSchedule
from timers.poller import Poller
from timers.port import NOTHING_HELD_BACK, HeldBack, Timer

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def add_to_noon(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def create_timers(tenant_id: uuid.UUID, count: int = 1, **given: Any) -> list[TimerSchedule]:
    """Create timers that are due at noon unless another time is given."""
    if not Tenant.objects.filter(pk=tenant_id).exists():
        TenantFactory(tenant_id=tenant_id, name=f"tenant {tenant_id}")
    calls = ServiceCallFactory.build_batch(count, tenant_id=tenant_id)
    ServiceCall.objects.bulk_create(calls)
    values = {"due_at": NOON, "host": "target.test", **given}
    timers = [
        TimerFactory.build(tenant_id=tenant_id, service_call_id=c.service_call_id, **values) for c in calls
    ]
    return list(TimerSchedule.objects.bulk_create(timers))


def build_timer(tenant_id: uuid.UUID, **given: Any) -> Timer:
    """Create a call, and return a timer for it that is not scheduled yet."""
    call = ServiceCallFactory(tenant_id=tenant_id)
    values = {
        "correlation_id": new_id(),
        "due_at": NOON,
        "shard_id": 3,
        "host": "target.test",
        "service_call_id": call.service_call_id,
        **given,
    }
    return Timer(tenant_id, **values)


def find_row(timer: Any) -> TimerSchedule | None:
    timers = TimerSchedule.objects.for_tenant(timer.tenant_id)
    return timers.filter(service_call_id=timer.service_call_id).first()


def join_node() -> Membership:
    membership = Membership()
    membership.join()
    return membership


def create_poller(num_shards: int = 4) -> Poller:
    membership = join_node()
    membership.rebalance(num_shards)
    return Poller(membership.leases, list_tenant_ids)


def claim_due(poller: Poller, limit: int = 1000, held_back: HeldBack = NOTHING_HELD_BACK) -> list[Timer]:
    with transaction.atomic():
        return poller.claim_due(limit, held_back)


def call_ids(timers: Any) -> set[uuid.UUID]:
    return {timer.service_call_id for timer in timers}

"""A timer that was changed since it was found is not marked as fired: the writer notices, and commits nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction

from eventservice.db.bulk import LostRace
from eventservice.db.now import db_now
from eventservice.tenants.models import Tenant
from orchestration.lifecycle import cancel, delete, reschedule
from tests.concurrency.races import ROUNDS, race
from tests.orchestration.support import ManualEngine, submit
from timers.models import TimerSchedule
from timers.persistence import timer_persistence
from timers.port import Timer

CALLS = 20


def find_due(acme: Tenant) -> list[Timer]:
    """Return due timers whose locks have been released, as if the writer had not found and marked them at once."""
    with transaction.atomic():
        return timer_persistence.find_due(acme.tenant_id, db_now(), CALLS)


def mark(due: list[Timer]) -> None:
    with transaction.atomic():
        timer_persistence.mark_fired(due, db_now(), dict.fromkeys({timer.shard_id for timer in due}, 1))


def list_states(acme: Tenant) -> set[str]:
    return set(TimerSchedule.objects.for_tenant(acme.tenant_id).values_list("state", flat=True))


def start_elsewhere(tenant_id: UUID, service_call_id: UUID) -> None:
    assert len(ManualEngine().start()) == CALLS


def reschedule_and_start(tenant_id: UUID, service_call_id: UUID) -> None:
    reschedule(tenant_id, service_call_id, db_now() - timedelta(seconds=1))
    start_elsewhere(tenant_id, service_call_id)


@pytest.mark.parametrize("change", [cancel, delete, start_elsewhere, reschedule_and_start])
def test_a_change_on_another_connection_is_noticed(
    acme: Tenant, elsewhere: Callable[..., Any], change: Callable[[UUID, UUID], Any]
) -> None:
    calls = [submit(acme) for _ in range(CALLS)]
    due = find_due(acme)
    assert len(due) == CALLS
    elsewhere(change, acme.tenant_id, calls[7]).result(60)
    before = list_states(acme)

    with pytest.raises(LostRace):
        mark(due)

    assert list_states(acme) == before


def test_of_two_who_mark_the_same_timers_at_once_one_notices(acme: Tenant) -> None:
    for _ in range(ROUNDS):
        for _ in range(CALLS):
            submit(acme)
        due = find_due(acme)
        results = race(*[partial(mark, due)] * 2)
        assert sorted(map(str, map(type, results))) == sorted(map(str, (type(None), LostRace)))
        assert list_states(acme) == {"Reached"}

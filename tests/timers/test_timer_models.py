"""Constraints on timers that the database itself enforces."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from eventservice.kernel.ids import new_id
from tests.factories import EARLIER, ServiceCallFactory, TimerFactory
from timers.models import TimerSchedule

pytestmark = pytest.mark.django_db


def create_timer(**values: Any) -> TimerSchedule:
    call = ServiceCallFactory()
    made: TimerSchedule = TimerFactory(
        tenant_id=call.tenant_id, service_call_id=call.service_call_id, **values
    )
    return made


@pytest.mark.parametrize(
    "bad",
    [
        {"state": "Bogus"},
        {"state": "Running"},
        {"state": "Scheduled", "reached_at": EARLIER},
        {"state": "Reached", "reached_at": None},
        {"correlation_id": None},
        {"due_at": None},
    ],
    ids=str,
)
def test_it_refuses(bad: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        create_timer(**bad)


def test_a_timer_is_scheduled_until_it_is_reached() -> None:
    made = create_timer()
    assert (made.state, made.reached_at) == ("Scheduled", None)
    of_tenant = TimerSchedule.objects.for_tenant(made.tenant_id)
    assert of_tenant.update(state="Reached", reached_at=EARLIER) == 1


def test_the_database_alone_makes_a_new_timer_scheduled() -> None:
    call = ServiceCallFactory()
    values = [call.tenant_id.hex, call.service_call_id.hex, new_id().hex]
    at = connection.ops.adapt_datetimefield_value(EARLIER)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO timer_schedules (tenant_id, service_call_id, correlation_id, due_at, registered_at,"
            " shard_id, host) VALUES (%s, %s, %s, %s, %s, 0, '')",
            [*values, at, at],
        )
    assert TimerSchedule.objects.for_tenant(call.tenant_id).get().state == "Scheduled"

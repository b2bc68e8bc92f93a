"""One transaction has one time, told by the database: `DbNow` in its statements, `db_now()` in Python."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction

from eventservice.db.now import DbNow, db_now
from eventservice.tenants.models import Tenant
from tests.database_clock import running_clock, until_the_clock_has_moved
from tests.factories import TenantFactory


def stored(name: str) -> datetime:
    return Tenant.objects.get(name=name).created_at


@pytest.mark.django_db
def test_two_statements_of_a_transaction_carry_the_same_time_as_python_sees() -> None:
    with transaction.atomic():
        TenantFactory(name="first", created_at=DbNow())
        until_the_clock_has_moved()
        TenantFactory(name="second", created_at=DbNow())
        until_the_clock_has_moved()
        seen = db_now()
    assert stored("first") == stored("second") == seen
    assert seen.tzinfo is UTC


@pytest.mark.django_db
def test_an_update_and_a_filter_see_the_time_that_an_insert_wrote() -> None:
    TenantFactory(name="first", created_at=DbNow())
    until_the_clock_has_moved()
    assert Tenant.objects.filter(created_at=DbNow()).count() == 1
    assert Tenant.objects.filter(created_at__gt=DbNow(timedelta(milliseconds=-1))).count() == 1
    assert Tenant.objects.filter(created_at__lt=DbNow()).count() == 0
    assert Tenant.objects.update(created_at=DbNow()) == 1
    assert stored("first") == db_now()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "offset",
    [
        timedelta(hours=1),
        timedelta(days=-400),
        timedelta(seconds=1, milliseconds=500),
        timedelta(milliseconds=-250),
        timedelta(milliseconds=1),
        timedelta(),
    ],
    ids=str,
)
def test_an_offset_is_exact(offset: timedelta) -> None:
    TenantFactory(name="moved", created_at=DbNow(offset))
    assert stored("moved") - db_now() == offset
    assert Tenant.objects.filter(created_at=DbNow(offset)).count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_later_transaction_carries_a_later_time() -> None:
    times = []
    for _ in range(3):
        with transaction.atomic():
            times.append(db_now())
        until_the_clock_has_moved()
    assert times == sorted(set(times))


@pytest.mark.django_db(transaction=True)
def test_outside_a_transaction_each_statement_has_its_own_time() -> None:
    TenantFactory(name="first", created_at=DbNow())
    until_the_clock_has_moved()
    TenantFactory(name="second", created_at=DbNow())
    assert stored("first") < stored("second") <= running_clock()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("offset", [timedelta(hours=1), timedelta(seconds=-1.5)], ids=str)
def test_outside_a_transaction_offsets_work_too(offset: timedelta) -> None:
    before = running_clock()
    TenantFactory(name="moved", created_at=DbNow(offset))
    assert before + offset <= stored("moved") <= running_clock() + offset


@pytest.mark.django_db(transaction=True)
def test_a_savepoint_keeps_the_time_of_its_transaction_also_when_it_is_rolled_back() -> None:
    with transaction.atomic():
        begun = db_now()
        until_the_clock_has_moved()
        with transaction.atomic():
            assert db_now() == begun
            transaction.set_rollback(True)
        assert db_now() == begun


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_transactions_time_is_gone_with_it() -> None:
    with transaction.atomic():
        rolled_back = db_now()
        transaction.set_rollback(True)
    until_the_clock_has_moved()
    assert db_now() > rolled_back
    with transaction.atomic():
        assert db_now() > rolled_back


@pytest.mark.django_db(transaction=True)
def test_a_connection_lost_within_a_transaction_takes_its_time_along() -> None:
    with transaction.atomic():
        lost = db_now()
        connection.close()
    until_the_clock_has_moved()
    assert db_now() > lost

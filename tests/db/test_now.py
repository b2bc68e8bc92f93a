"""A transaction has one time, by the database's clock: `DbNow` in its statements, `db_now()` in Python."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction

from eventservice.db.now import DbNow, db_now
from eventservice.tenants.models import Tenant
from tests.database_clock import read_running_clock, wait_until_the_clock_moves
from tests.factories import TenantFactory


def read_created_at(name: str) -> datetime:
    return Tenant.objects.get(name=name).created_at


@pytest.mark.django_db
def test_two_statements_of_a_transaction_and_python_see_the_same_time() -> None:
    with transaction.atomic():
        TenantFactory(name="first", created_at=DbNow())
        wait_until_the_clock_moves()
        TenantFactory(name="second", created_at=DbNow())
        wait_until_the_clock_moves()
        seen = db_now()
    assert read_created_at("first") == read_created_at("second") == seen
    assert seen.tzinfo is UTC


@pytest.mark.django_db
def test_an_update_and_a_filter_see_the_time_that_an_insert_wrote() -> None:
    TenantFactory(name="first", created_at=DbNow())
    wait_until_the_clock_moves()
    assert Tenant.objects.filter(created_at=DbNow()).count() == 1
    assert Tenant.objects.filter(created_at__gt=DbNow(timedelta(milliseconds=-1))).count() == 1
    assert Tenant.objects.filter(created_at__lt=DbNow()).count() == 0
    assert Tenant.objects.update(created_at=DbNow()) == 1
    assert read_created_at("first") == db_now()


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
    assert read_created_at("moved") - db_now() == offset
    assert Tenant.objects.filter(created_at=DbNow(offset)).count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_later_transaction_has_a_later_time() -> None:
    times = []
    for _ in range(3):
        with transaction.atomic():
            times.append(db_now())
        wait_until_the_clock_moves()
    assert times == sorted(set(times))


@pytest.mark.django_db(transaction=True)
def test_outside_a_transaction_each_statement_has_its_own_time() -> None:
    TenantFactory(name="first", created_at=DbNow())
    wait_until_the_clock_moves()
    TenantFactory(name="second", created_at=DbNow())
    assert read_created_at("first") < read_created_at("second") <= read_running_clock()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("offset", [timedelta(hours=1), timedelta(seconds=-1.5)], ids=str)
def test_outside_a_transaction_offsets_work_too(offset: timedelta) -> None:
    before = read_running_clock()
    TenantFactory(name="moved", created_at=DbNow(offset))
    assert before + offset <= read_created_at("moved") <= read_running_clock() + offset


@pytest.mark.django_db(transaction=True)
def test_a_savepoint_has_the_time_of_its_transaction_even_after_a_rollback() -> None:
    with transaction.atomic():
        begun = db_now()
        wait_until_the_clock_moves()
        with transaction.atomic():
            assert db_now() == begun
            transaction.set_rollback(True)
        assert db_now() == begun


@pytest.mark.django_db(transaction=True)
def test_the_time_of_a_transaction_ends_with_its_rollback() -> None:
    with transaction.atomic():
        rolled_back = db_now()
        transaction.set_rollback(True)
    wait_until_the_clock_moves()
    assert db_now() > rolled_back
    with transaction.atomic():
        assert db_now() > rolled_back


@pytest.mark.django_db(transaction=True)
def test_the_time_of_a_transaction_ends_with_its_connection() -> None:
    with transaction.atomic():
        lost = db_now()
        connection.close()
    wait_until_the_clock_moves()
    assert db_now() > lost

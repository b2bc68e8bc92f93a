"""A change of a table in use gives up before other sessions do, and is tried again, on MariaDB and MySQL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from django.db import connection, transaction

pytestmark = pytest.mark.django_db(transaction=True)

READ_LIMITS = "SELECT @@SESSION.innodb_lock_wait_timeout, @@SESSION.lock_wait_timeout"


@pytest.fixture(autouse=True)
def _only_without_transactions_of_ddl() -> None:
    if connection.features.can_rollback_ddl:
        pytest.skip("a migration is a transaction")


def read_limits() -> tuple[int, int]:
    with connection.cursor() as cursor:
        cursor.execute(READ_LIMITS)
        row, table = cursor.fetchone()
        return row, table


def test_its_limits_end_with_it() -> None:
    before = read_limits()
    with connection.schema_editor():
        assert read_limits() == (1, 1)
    assert read_limits() == before > (1, 1)


def test_a_table_in_use_is_changed_when_it_is_free(elsewhere: Callable[..., Future[Any]]) -> None:
    is_in_use, released = threading.Event(), threading.Event()

    def use_the_table() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT id FROM in_use FOR UPDATE")
            is_in_use.set()
            assert released.wait(60)

    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE in_use (id integer PRIMARY KEY)")
    try:
        user = elsewhere(use_the_table)
        assert is_in_use.wait(60)
        # Longer than one try.
        threading.Timer(2.5, released.set).start()
        with connection.schema_editor() as editor:
            editor.execute("ALTER TABLE in_use ADD COLUMN added integer")
        assert released.is_set()
        user.result(60)
        with connection.cursor() as cursor:
            cursor.execute("SELECT added FROM in_use")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE in_use")

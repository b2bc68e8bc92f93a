"""The schema of the spec on SQLite: tables, columns, keys, CHECKs, indexes by name, and every table STRICT."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from tests.factories import EARLIER, ServiceCallFactory, TenantFactory

pytestmark = [pytest.mark.sqlite_only, pytest.mark.django_db]

# The columns of the spec, to which ours are added. A trailing "?" marks a nullable column, "*" the primary key, in order.
COLUMNS = {
    "service_calls": (
        "tenant_id* service_call_id* name status submitted_at due_at started_at? finished_at? request_spec outcome_meta?"
    ),
    "service_call_tags": "tenant_id* service_call_id* tag*",
    "timer_schedules": "tenant_id* service_call_id* correlation_id due_at registered_at reached_at? state",
    "http_execution_log": (
        "tenant_id* service_call_id* execution_id* started_at finished_at? request_url request_method"
        " request_headers request_body? response_status? response_headers? response_body? error_message?"
    ),
    "outbox": "id* tenant_id aggregate_id event_type event_payload created_at published_at?",
}
# In the spec response_status is a string; ours is a number.
INTEGERS = {("outbox", "id"), ("http_execution_log", "response_status")}

INDEXES = {
    "idx_service_call_tags_tag": ("service_call_tags", ["tenant_id", "tag", "service_call_id"]),
    "idx_timer_schedules_due_at": ("timer_schedules", ["tenant_id", "state", "due_at"]),
    "idx_timer_schedules_correlation_id": ("timer_schedules", ["correlation_id"]),
}
CHECKS = {
    "service_calls": ["status", "'Scheduled'", "'Running'", "'Succeeded'", "'Failed'", "'Canceled'"],
    "timer_schedules": ["state", "'Scheduled'", "'Reached'", "reached_at"],
    "http_execution_log": ["request_method", "'GET'", "'POST'", "'PUT'", "'DELETE'", "'PATCH'"],
}


def read_rows(sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, None)
        return list(cursor.fetchall())


def test_every_table_is_strict_even_those_of_django_and_the_task_queue() -> None:
    tables = read_rows("SELECT name, strict FROM pragma_table_list WHERE schema = 'main' AND type = 'table'")
    loose = {name for name, strict in tables if not strict and not name.startswith("sqlite_")}
    assert loose == set()
    assert {"django_migrations", "auth_user", "django_q_ormq", *COLUMNS} <= {name for name, _ in tables}


@pytest.mark.parametrize("table", COLUMNS)
def test_the_columns_of_the_spec_exist(table: str) -> None:
    # hidden = 0 excludes generated columns.
    found = {
        name: (kind, notnull, pk)
        for _, name, kind, notnull, _, pk in read_rows(f"PRAGMA table_info({table})")
    }
    keys = [word.rstrip("*") for word in COLUMNS[table].split() if word.endswith("*")]
    for word in COLUMNS[table].split():
        name = word.rstrip("*?")
        kind, notnull, pk = found[name]
        assert kind.lower() == ("integer" if (table, name) in INTEGERS else "text"), name
        assert notnull == (not word.endswith("?")), name
        assert pk == (keys.index(name) + 1 if name in keys else 0), name


@pytest.mark.parametrize("table", ["service_call_tags", "timer_schedules", "http_execution_log"])
def test_rows_of_a_call_refer_to_it_within_their_tenant_and_are_deleted_with_it(table: str) -> None:
    found = {
        (to, source, target, delete)
        for _, _, to, source, target, _, delete, _ in read_rows(f"PRAGMA foreign_key_list({table})")
    }
    assert found == {
        ("service_calls", "tenant_id", "tenant_id", "CASCADE"),
        ("service_calls", "service_call_id", "service_call_id", "CASCADE"),
    }


def test_the_outbox_has_no_foreign_keys() -> None:
    assert read_rows("PRAGMA foreign_key_list(outbox)") == []


@pytest.mark.parametrize("table", CHECKS)
def test_the_checks_of_the_spec_exist(table: str) -> None:
    ((sql,),) = read_rows(f"SELECT sql FROM sqlite_schema WHERE name = '{table}'")
    checks = sql[sql.index("CHECK") :]
    for word in CHECKS[table]:
        assert word in checks


@pytest.mark.parametrize("index", INDEXES)
def test_the_indexes_of_the_spec_exist_by_name(index: str) -> None:
    table, columns = INDEXES[index]
    assert read_rows(f"SELECT tbl_name FROM sqlite_schema WHERE name = '{index}'") == [(table,)]
    assert [name for _, _, name in read_rows(f"PRAGMA index_info({index})")] == columns


def test_the_polling_index_of_the_outbox_holds_only_unpublished_events() -> None:
    partial = read_rows(
        "SELECT sql FROM sqlite_schema WHERE tbl_name = 'outbox' AND sql LIKE '%WHERE%published_at%IS NULL%'"
    )
    assert partial


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        ("UPDATE service_calls SET name = %s", [b"bytes"]),
        ("UPDATE service_calls SET attempt = %s", ["many"]),
        ("UPDATE service_calls SET attempt = %s", [1.5]),
        ("UPDATE service_calls SET timeout_seconds = %s", ["soon"]),
        ("UPDATE tenants SET active = %s", ["yes"]),
        ("UPDATE tenants SET created_at = %s", [b"now"]),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(statement: str, values: list[Any]) -> None:
    TenantFactory()
    ServiceCallFactory(submitted_at=EARLIER)
    with (
        pytest.raises(IntegrityError, match="cannot store"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement, values)

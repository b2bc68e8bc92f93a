"""Migrations on every database: filled ones keep their rows, end up with the schema of new ones, and can go back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from orchestration.fingerprints import is_sealed
from tests.databases import get_database_name
from tests.db.migration_walk import (
    Walk,
    read_rows,
    temporary_database,
    walk_back,
    walk_empty,
    walk_filled,
)
from tests.db.sample_rows import list_models
from tests.db.schema_snapshot import Schema, list_differences, read_schema

# The databases are prepared once.
pytestmark = pytest.mark.xdist_group("migrations")


@dataclass
class NewDatabase:
    walk: Walk
    # The schema, the applied migrations and the rows, before `migrate` and after it.
    migrated: list[tuple[Schema, Any, Any]] = field(default_factory=list)


@dataclass
class FilledDatabase:
    walk: Walk
    way_back: Walk
    rows: dict[str, list[Any]]
    faults: list[Any]


@pytest.fixture(scope="module")
def new_database(django_db_modify_db_settings: None, django_db_blocker: Any) -> Iterator[NewDatabase]:
    with django_db_blocker.unblock(), temporary_database("new") as database:
        found = NewDatabase(walk_empty(database))
        call_command("migrate", verbosity=0)  # adds permissions and content types
        for _ in range(2):
            found.migrated.append((read_schema(), _read_applied(), read_rows(apps)))
            call_command("migrate", verbosity=0)
        yield found


def _read_applied() -> list[Any]:
    return [*MigrationRecorder(connection).migration_qs.order_by("id").values_list()]


@pytest.fixture(scope="module")
def full_database(django_db_modify_db_settings: None, django_db_blocker: Any) -> Iterator[FilledDatabase]:
    with django_db_blocker.unblock(), temporary_database("filled") as database:
        walk = walk_filled(database)
        rows = {model._meta.label: [*model._base_manager.all()] for model in list_models(apps)}
        faults = _find_faults()
        yield FilledDatabase(walk, walk_back(database, walk), rows, faults)


def _find_faults() -> list[Any]:
    """Return rows that break a constraint. Only SQLite, which creates tables again, does not look when it adds one."""
    if get_database_name() != "sqlite":
        return []
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA foreign_key_check")
        broken_references = cursor.fetchall()
        cursor.execute("PRAGMA integrity_check")
        return [*broken_references, *(row for row in cursor.fetchall() if row != ("ok",))]


def test_migrating_again_changes_nothing(new_database: NewDatabase) -> None:
    before, after = new_database.migrated
    assert after == before


def test_a_full_database_gets_the_schema_of_a_new_one(
    new_database: NewDatabase, full_database: FilledDatabase
) -> None:
    assert list_differences(full_database.walk.schema, new_database.walk.schema) == []
    if get_database_name() == "sqlite":
        tables = [sql for name, sql in full_database.walk.schema.items() if name.startswith("table ")]
        assert tables
        assert all(" STRICT" in sql.splitlines() for sql in tables)


def test_every_table_of_the_service_has_rows_that_went_through_the_migrations(
    full_database: FilledDatabase,
) -> None:
    assert [label for label, rows in full_database.rows.items() if not rows] == []
    for model in list_models(apps):
        for column in model._meta.local_concrete_fields:
            if column.choices:
                stored = {getattr(row, column.attname) for row in full_database.rows[model._meta.label]}
                assert stored >= {value for value, _ in column.flatchoices}, column


def test_every_row_survives_every_migration(full_database: FilledDatabase) -> None:
    assert full_database.walk.lost_rows == []


def test_values_stay_as_they_are_unless_a_migration_replaces_them(full_database: FilledDatabase) -> None:
    assert full_database.walk.changed_values == []
    sealed = [
        is_sealed(call.request_fingerprint)
        for call in full_database.rows["orchestration.ServiceCall"]
        if call.idempotency_key and call.request_fingerprint
    ]
    assert sealed.count(True) > 10


# Migrations that replace a CHECK by one that accepts more.
WIDENED_CHECKS = {"timers.0009_node_cluster"}


def test_rows_that_a_new_check_would_refuse_are_completed(full_database: FilledDatabase) -> None:
    assert full_database.walk.completed_rows.keys() >= {
        "orchestration.0007_row_states",
        "execution.0004_row_states",
    }
    untouched = {name for name, count in full_database.walk.completed_rows.items() if not count}
    assert untouched == WIDENED_CHECKS


def test_every_row_agrees_with_the_constraints_of_its_table(full_database: FilledDatabase) -> None:
    assert full_database.faults == []


def test_the_migrations_can_be_unapplied_one_by_one(
    new_database: NewDatabase, full_database: FilledDatabase
) -> None:
    *on_the_way, _ = new_database.walk.schemas.items()
    back = full_database.way_back.schemas
    assert back.keys() == dict(on_the_way).keys()
    differences = {name: list_differences(back[name], schema) for name, schema in on_the_way}
    assert {name: found for name, found in differences.items() if found} == {}
    assert full_database.way_back.lost_rows == []

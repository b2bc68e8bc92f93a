"""Constraints and indexes of our own are the same after they were written to a migration and read again."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings
from django.db import IntegrityError, connection, models
from django.db.migrations import AddConstraint, RemoveConstraint
from django.db.migrations.operations.base import Operation
from django.db.migrations.serializer import serializer_factory
from django.db.migrations.state import ProjectState
from django.db.models import Q

from eventservice.db.constraints import CompositeForeignKey, PollingIndex
from orchestration.models import ServiceCall
from outbox.models import OutboxEvent
from tests.factories import TimerFactory
from timers.models import TimerSchedule


def build_foreign_key(**changes: Any) -> CompositeForeignKey:
    given: dict[str, Any] = {"name": "fk", "fields": ("a", "b"), "to": "app.Model", "to_fields": ("c", "d")}
    return CompositeForeignKey(**given | changes)


def build_polling_index(**changes: Any) -> PollingIndex:
    given: dict[str, Any] = {"name": "ix", "fields": ["b"], "condition": Q(a=1), "full": ("a", "b")}
    return PollingIndex(**given | changes)


@pytest.mark.parametrize("made", [build_foreign_key(), build_polling_index()], ids=["foreign key", "index"])
def test_a_constraint_is_the_same_after_it_was_written_to_a_migration(made: Any) -> None:
    text, imports = serializer_factory(made).serialize()
    names: dict[str, Any] = {}
    exec("\n".join(imports), names)
    read = eval(text, names)
    assert type(read) is type(made)
    assert read == made
    assert made.clone() == made


@pytest.mark.parametrize(
    "change", [{"name": "x"}, {"fields": ("a",)}, {"to": "app.X"}, {"to_fields": ("c",)}], ids=str
)
def test_foreign_keys_that_differ_are_not_equal(change: dict[str, Any]) -> None:
    assert build_foreign_key(**change) != build_foreign_key()
    assert len({build_foreign_key(**change), build_foreign_key(), build_foreign_key()}) == 2


@pytest.mark.parametrize("change", [{"name": "x"}, {"condition": Q(a=2)}, {"full": ("b", "a")}], ids=str)
def test_indexes_that_differ_are_not_equal(change: dict[str, Any]) -> None:
    assert build_polling_index(**change) != build_polling_index()


def test_the_models_and_the_migrations_agree() -> None:
    command = [sys.executable, "manage.py", "makemigrations", "--check", "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=settings.BASE_DIR)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.django_db
@pytest.mark.parametrize("model", [TimerSchedule, OutboxEvent, ServiceCall])
def test_a_polling_index_is_partial_where_the_database_has_partial_indexes(model: type[models.Model]) -> None:
    partial = connection.features.supports_partial_indexes
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, model._meta.db_table)
    polling = [index for index in model._meta.indexes if isinstance(index, PollingIndex)]
    assert polling
    for index in polling:
        assert found[index.name]["columns"] == list(index.fields if partial else index.full)
        assert index.condition is not None


def migrate(operation: Operation, state: ProjectState) -> ProjectState:
    following = state.clone()
    operation.state_forwards("timers", following)
    with connection.schema_editor() as editor:
        operation.database_forwards("timers", editor, state, following)
    return following


@pytest.mark.django_db(transaction=True)
def test_a_migration_can_remove_a_foreign_key_and_add_it_again() -> None:
    key = next(c for c in TimerSchedule._meta.constraints if isinstance(c, CompositeForeignKey))

    without = migrate(RemoveConstraint("TimerSchedule", key.name), ProjectState.from_apps(apps))
    TimerFactory()

    TimerSchedule.across_tenants.all().delete()
    migrate(AddConstraint("TimerSchedule", key), without)
    with pytest.raises(IntegrityError):
        TimerFactory()

"""Constraints and indexes of our own are the same after they were written to a migration and read again."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, OperationalError, connection, models, transaction
from django.db.backends.mysql.schema import DatabaseSchemaEditor
from django.db.migrations import AddConstraint, AddField, AlterField, RemoveConstraint, RemoveField
from django.db.migrations.operations.base import Operation
from django.db.migrations.serializer import serializer_factory
from django.db.migrations.state import ProjectState
from django.db.models import Q

from eventservice.db.constraints import CompositeForeignKey, ImmutableField, PollingIndex
from eventservice.tenants.models import Namespace
from orchestration.models import ServiceCall
from outbox.models import OutboxEvent
from tests.factories import NamespaceFactory, TimerFactory
from timers.models import TimerSchedule


def build_foreign_key(**changes: Any) -> CompositeForeignKey:
    given: dict[str, Any] = {"name": "fk", "fields": ("a", "b"), "to": "app.Model", "to_fields": ("c", "d")}
    return CompositeForeignKey(**given | changes)


def build_polling_index(**changes: Any) -> PollingIndex:
    given: dict[str, Any] = {"name": "ix", "fields": ["b"], "condition": Q(a=1), "full": ("a", "b")}
    return PollingIndex(**given | changes)


@pytest.mark.parametrize(
    "made",
    [build_foreign_key(), build_polling_index(), ImmutableField(name="tr", field="a")],
    ids=["foreign key", "index", "immutable field"],
)
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


def test_immutable_fields_that_differ_are_not_equal() -> None:
    made = [ImmutableField(name=name, field=field) for name in "xy" for field in "ab"]
    assert len({*made, *[one.clone() for one in made]}) == 4


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


def migrate(operation: Operation, state: ProjectState, app: str = "timers") -> ProjectState:
    following = state.clone()
    operation.state_forwards(app, following)
    with connection.schema_editor() as editor:
        operation.database_forwards(app, editor, state, following)
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


def count_changed_namespaces() -> int:
    """Return how many namespaces the database lets change their number of shards."""
    with transaction.atomic():
        changed = Namespace.across_tenants.update(num_shards=models.F("num_shards") + 1)
        transaction.set_rollback(True)
    return changed


def assert_namespaces_keep_their_shards() -> None:
    with pytest.raises(IntegrityError, match="num_shards cannot be changed"):
        count_changed_namespaces()


@pytest.mark.django_db(transaction=True)
def test_later_migrations_of_the_table_keep_a_field_immutable() -> None:
    NamespaceFactory(num_shards=16)
    note = models.CharField(max_length=20, default="none")
    longer = models.CharField(max_length=300)
    bigger = models.PositiveBigIntegerField(default=16)
    usual = {name: Namespace._meta.get_field(name).clone() for name in ("name", "num_shards")}  # type: ignore[union-attr]

    state = migrate(AddField("Namespace", "note", note), ProjectState.from_apps(apps), "tenants")
    assert_namespaces_keep_their_shards()
    state = migrate(AlterField("Namespace", "name", longer), state, "tenants")
    assert_namespaces_keep_their_shards()
    state = migrate(AlterField("Namespace", "num_shards", bigger), state, "tenants")
    connection.close()  # PostgreSQL has compiled the trigger for the old type in this session
    assert_namespaces_keep_their_shards()
    for name, field in usual.items():
        state = migrate(AlterField("Namespace", name, field), state, "tenants")
    migrate(RemoveField("Namespace", "note"), state, "tenants")
    connection.close()
    assert_namespaces_keep_their_shards()


@pytest.mark.django_db(transaction=True)
def test_a_migration_can_make_a_field_changeable_and_immutable_again() -> None:
    NamespaceFactory(num_shards=16)
    trigger = next(c for c in Namespace._meta.constraints if isinstance(c, ImmutableField))

    without = migrate(RemoveConstraint("Namespace", trigger.name), ProjectState.from_apps(apps), "tenants")
    assert count_changed_namespaces() == 1

    migrate(AddConstraint("Namespace", trigger), without, "tenants")
    assert_namespaces_keep_their_shards()


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "sqlite", reason="only SQLite creates tables again")
def test_tables_that_are_created_again_for_new_checks_keep_a_field_immutable() -> None:
    NamespaceFactory(num_shards=16)
    with connection.schema_editor() as editor:
        editor._remake_table(Namespace)  # type: ignore[attr-defined]
    assert_namespaces_keep_their_shards()


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "mysql", reason="about privileges of MariaDB and MySQL")
@pytest.mark.parametrize("number", [1142, 1419])
def test_a_user_who_may_not_create_triggers_learns_what_to_grant(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OperationalError(number, "as the server says")

    monkeypatch.setattr(DatabaseSchemaEditor, "execute", refuse)
    trigger = next(c for c in Namespace._meta.constraints if isinstance(c, ImmutableField))
    with pytest.raises(ImproperlyConfigured, match="log_bin_trust_function_creators"):
        connection.schema_editor().add_constraint(Namespace, trigger)
    with pytest.raises(OperationalError, match="as the server says"):
        connection.schema_editor().execute("DROP TABLE nothing")

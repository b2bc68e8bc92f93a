"""Walks a temporary database through all migrations, filled or empty, and records what each of them did to it.

The walk reads the graph of migrations, so new ones are covered without being named. Its beginning is the first schema: the
first migration of each app of ours, and all migrations of other packages. From there it goes one migration at a time, in
one order for all databases. A filled database gets rows in every table at the beginning, and further rows in each table
that a migration changed: rows of each schema go through all later migrations.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from django.apps.registry import Apps
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import FieldError
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations import (
    AddConstraint,
    Migration,
    RenameField,
    RunPython,
    RunSQL,
    SeparateDatabaseAndState,
)
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.models import CheckConstraint, Q
from django.db.utils import load_backend

from eventservice.db.dialects import get_dialect
from tests.db.sample_rows import Model, SampleRows, list_models
from tests.db.schema_snapshot import Schema, read_schema

# Its tables are older than the CHECKs of their columns: the databases of earlier releases had been created without them.
COLUMN_CHECKS = "eventservice.0003_column_checks"

# Columns whose values a migration replaces on purpose.
REPLACED_VALUES = {
    "orchestration.0006_sealed_fingerprints": {("orchestration.servicecall", "request_fingerprint")},
}

# By the label of the model and the key of the row: the values of its columns.
Rows = dict[str, dict[Any, dict[str, Any]]]


@contextmanager
def temporary_database(name: str) -> Iterator[BaseDatabaseWrapper]:
    """Create an empty database beside the tests' own. It is the default one until it is dropped."""
    usual = connections[DEFAULT_DB_ALIAS]
    entry = copy.deepcopy(usual.settings_dict)
    entry["TEST"]["NAME"] = f"{usual.creation._get_test_db_name()}_{name}"  # type: ignore[attr-defined]
    database = load_backend(entry["ENGINE"]).DatabaseWrapper(entry, DEFAULT_DB_ALIAS)
    entry["NAME"] = database.creation._create_test_db(verbosity=0, autoclobber=True)
    get_dialect(database).create_database(database)
    database.close()
    connections[DEFAULT_DB_ALIAS] = database
    ContentType.objects.clear_cache()
    try:
        yield database
    finally:
        connections[DEFAULT_DB_ALIAS] = usual
        ContentType.objects.clear_cache()
        database.creation.destroy_test_db(verbosity=0)


@dataclass
class Walk:
    """The record of a walk. Migrations are named as `app.name`."""

    # After each migration, and under "" at the beginning.
    schemas: dict[str, Schema] = field(default_factory=dict)
    lost_rows: list[str] = field(default_factory=list)
    changed_values: list[str] = field(default_factory=list)
    # How many rows did not satisfy the CHECKs that a migration added, before it completed them.
    completed_rows: dict[str, int] = field(default_factory=dict)
    steps: list[Migration] = field(default_factory=list)

    @property
    def schema(self) -> Schema:
        return self.schemas[name_migration(self.steps[-1])]


def name_migration(migration: Migration) -> str:
    return f"{migration.app_label}.{migration.name}"


def walk_empty(database: BaseDatabaseWrapper) -> Walk:
    executor, state, walk = _begin(database)
    for migration in walk.steps:
        state = executor.apply_migration(state, migration)
        walk.schemas[name_migration(migration)] = read_schema()
    return walk


def walk_filled(database: BaseDatabaseWrapper) -> Walk:
    """Walk a database with rows. Its tables have the CHECKs of columns only since the migration that adds them."""
    with ExitStack() as without_column_checks:
        without_column_checks.enter_context(_without_column_checks(database))
        executor, state, walk = _begin(database)
        sample = SampleRows()
        sample.fill(list_models(state.apps))
        rows = read_rows(state.apps)
        for migration in walk.steps:
            if name_migration(migration) == COLUMN_CHECKS:
                without_column_checks.close()
            before = state.clone()
            kept = _find_rows_to_keep(before, migration)
            state = executor.apply_migration(state, migration)
            walk.schemas[name_migration(migration)] = read_schema()
            after = read_rows(state.apps)
            _compare(walk, migration, rows, kept, after)
            changed = _list_changed_models(before, state)
            sample.fill(changed)
            rows = read_rows(state.apps) if changed else after
    return walk


def walk_back(database: BaseDatabaseWrapper, walk: Walk) -> Walk:
    """Unapply the migrations of a walk. The schemas of the result are those after each migration, as on the way there."""
    back = Walk(steps=walk.steps)
    before = ["", *map(name_migration, walk.steps)]

    def record(action: str, migration: Migration | None = None, fake: bool | None = None) -> None:
        if action == "unapply_success" and migration is not None:
            back.schemas[before[before.index(name_migration(migration)) - 1]] = read_schema()

    executor = MigrationExecutor(database, record)
    keys = _read_keys(executor.loader.project_state().apps)
    state = executor.migrate(None, plan=[(migration, True) for migration in reversed(walk.steps)])
    left = _read_keys(state.apps)
    back.lost_rows = [f"{label} {key}" for label in left for key in keys[label] - left[label]]
    return back


def _begin(database: BaseDatabaseWrapper) -> tuple[MigrationExecutor, ProjectState, Walk]:
    executor = MigrationExecutor(database)
    graph = executor.loader.graph
    ours = {app for app, name in graph.nodes if _is_ours(graph.nodes[app, name])}
    first = [key for key in graph.root_nodes() if key[0] in ours]
    others = [key for key in graph.leaf_nodes() if key[0] not in ours]
    state = executor.migrate([*first, *others])
    walk = Walk({"": read_schema()})
    executor = MigrationExecutor(database)
    walk.steps = [migration for migration, _ in executor.migration_plan(graph.leaf_nodes())]
    return executor, state, walk


def _is_ours(migration: Migration) -> bool:
    return migration.__module__.partition(".")[0] not in ("django", "django_q")


@contextmanager
def _without_column_checks(database: BaseDatabaseWrapper) -> Iterator[None]:
    """Create tables with those CHECKs of columns that Django itself has."""
    name = "data_type_check_constraints"
    original = next(
        vars(base)[name]
        for base in type(database).__mro__
        if base.__module__.startswith("django.") and name in vars(base)
    )
    with mock.patch.object(type(database), name, original):
        yield


def read_rows(apps: Apps) -> Rows:
    rows: Rows = {}
    for model in list_models(apps):
        columns = [column.name for column in model._meta.local_concrete_fields]
        key = [column.name for column in model._meta.pk_fields]
        rows[model._meta.label_lower] = {
            tuple(values[name] for name in key): values for values in model._base_manager.values(*columns)
        }
    return rows


def _read_keys(apps: Apps) -> dict[str, set[Any]]:
    return {label: {*rows} for label, rows in read_rows(apps).items()}


def _find_rows_to_keep(before: ProjectState, migration: Migration) -> dict[str, set[Any]]:
    """Return, of the tables that get CHECKs, the rows that satisfy them already. A migration completes the others."""
    conditions: dict[str, Q] = {}
    for operation in _list_operations(migration.operations):
        if isinstance(operation, AddConstraint) and isinstance(operation.constraint, CheckConstraint):
            label = f"{migration.app_label}.{operation.model_name.lower()}"
            conditions[label] = conditions.get(label, Q()) & operation.constraint.condition  # type: ignore[operator]
    return {
        label: _find_keys(before.apps.get_model(label), condition) for label, condition in conditions.items()
    }


def _find_keys(model: Model, condition: Q) -> set[Any]:
    key = [column.name for column in model._meta.pk_fields]
    try:
        return {*model._base_manager.filter(condition).values_list(*key)}
    except FieldError:
        return set()  # the CHECK is about a column that the same migration adds


def _list_operations(operations: Any) -> Iterator[Operation]:
    for operation in operations:
        if isinstance(operation, SeparateDatabaseAndState):
            yield from _list_operations(operation.database_operations)
        else:
            yield operation


def _compare(walk: Walk, migration: Migration, before: Rows, kept: dict[str, set[Any]], after: Rows) -> None:
    name = name_migration(migration)
    operations = [*_list_operations(migration.operations)]
    renamed = {
        (f"{migration.app_label}.{operation.model_name.lower()}", operation.old_name): operation.new_name
        for operation in operations
        if isinstance(operation, RenameField)
    }
    for label in before.keys() & after.keys():
        walk.lost_rows += [f"{name}: {label} {key}" for key in before[label].keys() - after[label].keys()]
        for key in (kept[label] if label in kept else before[label].keys()) & after[label].keys():
            for column, value in before[label][key].items():
                now = after[label][key].get(renamed.get((label, column), column), value)
                if now != value and (label, column) not in REPLACED_VALUES.get(name, set()):
                    walk.changed_values.append(f"{name}: {label} {key} {column}: {value!r} → {now!r}")
    if any(isinstance(operation, RunPython | RunSQL) for operation in operations) and kept:
        walk.completed_rows[name] = sum(len(before[label].keys() - keys) for label, keys in kept.items())


def _list_changed_models(before: ProjectState, after: ProjectState) -> list[Model]:
    changed = {
        key for key, model in after.models.items() if key not in before.models or before.models[key] != model
    }
    return [
        model
        for model in list_models(after.apps)
        if (model._meta.app_label, model._meta.model_name) in changed
    ]

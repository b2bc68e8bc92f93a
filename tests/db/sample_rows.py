"""Rows for the tables of any migration, made from nothing but the models of that migration.

A table gets a row for each of its states: for every value of every column with choices, with all optional columns empty,
all set, and each of them alone empty or set. Combinations that the schema refuses are left out, so that an early schema,
with few CHECKs, gets the odd rows that a later migration has to complete.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.apps.registry import Apps
from django.db import IntegrityError, models, transaction

Model = type[models.Model]

FIRST_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)

# What a column demands that its type does not show: by the column, and the number of the row.
SPECIAL_VALUES: dict[str, Any] = {
    "request_method": lambda number: "GET",
    "request_fingerprint": lambda number: hashlib.sha256(str(number).encode()).hexdigest(),
    "request_spec": lambda number: {
        "method": "GET", "url": f"https://example.test/{number}", "headers": {}, "body": None,
    },
}  # fmt: skip


def list_models(apps: Apps) -> list[Model]:
    """Return the models that have tables, each after those that it refers to."""
    waiting = [
        model
        for model in apps.get_models(include_auto_created=True)
        if model._meta.managed and not model._meta.proxy
    ]
    ordered: list[Model] = []
    while waiting:
        ready = [model for model in waiting if not _list_targets(model) & {*waiting} - {model}]
        ordered += ready
        waiting = [model for model in waiting if model not in ready]
    return ordered


def _list_targets(model: Model) -> set[Model]:
    targets = {relation.related_model for relation in _list_relations(model)}
    return targets | {_get_tenant_model(model)} if _belongs_to_tenant(model) else targets


def _belongs_to_tenant(model: Model) -> bool:
    columns = {field.attname for field in model._meta.local_concrete_fields}
    return "tenant_id" in columns and model._meta.label_lower != "tenants.tenant"


def _get_tenant_model(model: Model) -> Model:
    return model._meta.apps.get_model("tenants", "Tenant")


def _list_relations(model: Model) -> list[Any]:
    return [field for field in model._meta.get_fields() if isinstance(field, models.ForeignObject)]


class SampleRows:
    """Fills tables. The rows of one object differ in their keys and in whatever has to be unique."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._used_targets: Counter[str] = Counter()

    @transaction.atomic  # a commit for each row would take several times as long
    def fill(self, models: Iterable[Model]) -> None:
        """Insert the rows into the models' tables. Raise an AssertionError if a table refuses all of them."""
        for model in models:
            values = [*self._build_rows(model)]
            inserted = sum(_insert(model, row) for row in values)
            assert inserted, (
                f"{model._meta.db_table} refuses every row: add what it demands to SPECIAL_VALUES."
            )

    def _build_rows(self, model: Model) -> Iterator[dict[str, Any]]:
        fields = [field for field in model._meta.local_concrete_fields if not _is_made_by_the_database(field)]
        optional = [field.attname for field in fields if _is_optional(field)]
        for switched in _list_switches(fields):
            for pattern in _list_patterns(optional):
                number = next(self._numbers)
                values = {
                    field.attname: _build_value(field, number, field.attname in pattern) for field in fields
                }
                yield values | switched | self._build_references(model, values)

    def _build_references(self, model: Model, values: dict[str, Any]) -> dict[str, Any]:
        """Return the columns that refer to rows of other tables, each time to other rows."""
        references: dict[str, Any] = {}
        if _belongs_to_tenant(model) and values["tenant_id"]:
            references["tenant_id"] = self._pick_target(model, _get_tenant_model(model), ["tenant_id"])[0]
        for relation in _list_relations(model):
            pairs = [(ours.attname, theirs.attname) for ours, theirs in relation.related_fields]
            if any(values.get(ours) is None and relation.null for ours, _ in pairs):
                continue
            target = self._pick_target(model, relation.related_model, [theirs for _, theirs in pairs])
            references |= {ours: value for (ours, _), value in zip(pairs, target, strict=True)}
        return references

    def _pick_target(self, model: Model, target: Model, columns: list[str]) -> Any:
        rows = target._base_manager.order_by(*columns)
        use = f"{model._meta.db_table} to {target._meta.db_table}"
        self._used_targets[use] += 1
        return rows.values_list(*columns)[self._used_targets[use] % rows.count()]


def _insert(model: Model, values: dict[str, Any]) -> bool:
    try:
        with transaction.atomic():
            model(**values).save(force_insert=True)
    except IntegrityError:
        return False
    return True


def _is_made_by_the_database(field: Any) -> bool:
    return bool(field.generated) or isinstance(field, models.AutoField | models.BigAutoField)


def _is_optional(field: Any) -> bool:
    """Return whether the column has a value that says "none yet": NULL, 0 or false."""
    return not field.choices and (
        field.null
        or isinstance(field, models.BooleanField)
        or (isinstance(field, models.IntegerField) and field.default == 0)
    )


def _list_switches(fields: Iterable[Any]) -> list[dict[str, Any]]:
    found = [{field.attname: value} for field in fields if field.choices for value, _ in field.flatchoices]
    return found or [{}]


def _list_patterns(optional: list[str]) -> list[set[str]]:
    """Return which of the optional columns have a value, in each row."""
    every = {*optional}
    patterns = [set[str](), every, *({name} for name in optional), *(every - {name} for name in optional)]
    return [pattern for n, pattern in enumerate(patterns) if pattern not in patterns[:n]]


def _build_value(field: Any, number: int, is_set: bool) -> Any:
    if _is_optional(field) and not is_set:
        return None if field.null else field.to_python(0)
    if field.attname in SPECIAL_VALUES:
        return SPECIAL_VALUES[field.attname](number)
    if field.choices:
        return field.get_default() if field.has_default() else field.flatchoices[0][0]
    if not _is_optional(field) and field.has_default() and not field.unique:
        return field.get_default()
    return _build_by_type(field, number)


def _build_by_type(field: Any, number: int) -> Any:
    match field:
        case models.UUIDField():
            return UUID(f"01900000-0000-7000-8000-{number:012x}")
        case models.BooleanField():
            return True
        case models.DateTimeField():
            return FIRST_MOMENT + timedelta(seconds=number)
        case models.JSONField():
            return {}
        case models.FloatField():
            return float(number)
        case models.IntegerField() | models.ForeignKey():
            return number % 15 + 1
        case _:
            return f"{number}-{field.name}"[: field.max_length]

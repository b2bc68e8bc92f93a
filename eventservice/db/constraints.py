"""Additions to Django's schema: a composite foreign key, an immutable field, and a polling index on every database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.db import models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.ddl_references import Statement, Table
from django.db.models.constraints import BaseConstraint

from eventservice.db.dialects import get_dialect


class CompositeForeignKey(BaseConstraint):
    """FOREIGN KEY (fields) REFERENCES to (to_fields) ON DELETE CASCADE, enforced by the database.

    The target is a model's label, so that an app can refer to another's table without importing it. In the ORM the
    relation is a `ForeignObject` with `DO_NOTHING`.
    """

    def __init__(self, *, fields: tuple[str, ...], to: str, to_fields: tuple[str, ...], name: str) -> None:
        super().__init__(name=name)
        self.fields = tuple(fields)
        self.to = to
        self.to_fields = tuple(to_fields)

    def constraint_sql(  # type: ignore[override]
        self, model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor
    ) -> str:
        target = self._target(model)
        quote = schema_editor.quote_name

        def columns(of: type[models.Model], names: tuple[str, ...]) -> str:
            return ", ".join(quote(str(of._meta.get_field(name).column)) for name in names)  # type: ignore[union-attr]

        return (
            f"CONSTRAINT {quote(self.name)} FOREIGN KEY ({columns(model, self.fields)}) "
            f"REFERENCES {quote(target._meta.db_table)} ({columns(target, self.to_fields)}) ON DELETE CASCADE"
        )

    def _target(self, model: type[models.Model]) -> type[models.Model]:
        try:
            return model._meta.apps.get_model(self.to)
        except LookupError:
            # To alter a table, SQLite creates it again, as a model in a registry that has no other model.
            return apps.get_model(self.to)

    def create_sql(  # type: ignore[override]
        self, model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor
    ) -> Statement:
        return Statement(
            "ALTER TABLE %(table)s ADD %(constraint)s",
            table=Table(model._meta.db_table, schema_editor.quote_name),
            constraint=self.constraint_sql(model, schema_editor),
        )

    def remove_sql(  # type: ignore[override]
        self, model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor
    ) -> Statement:
        return Statement(
            schema_editor.sql_delete_fk,
            table=Table(model._meta.db_table, schema_editor.quote_name),
            name=schema_editor.quote_name(self.name),
        )

    def validate(self, *args: object, **kwargs: object) -> None:
        """Do nothing: the database itself refuses a wrong reference."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CompositeForeignKey) and self.deconstruct() == other.deconstruct()

    def __hash__(self) -> int:
        return hash((self.name, self.fields, self.to, self.to_fields))

    def deconstruct(self) -> tuple[str, Sequence[object], dict[str, object]]:
        path, args, kwargs = super().deconstruct()
        return path, args, {**kwargs, "fields": self.fields, "to": self.to, "to_fields": self.to_fields}


class ImmutableField(BaseConstraint):
    """A trigger by which the database refuses to change a field of an existing row.

    As a constraint of the model it is created again whenever SQLite creates the table again to alter it.
    """

    def __init__(self, *, field: str, name: str) -> None:
        super().__init__(name=name)
        self.field = field

    def constraint_sql(  # type: ignore[override]
        self, model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor
    ) -> None:
        # Not part of CREATE TABLE: it is created after the table.
        schema_editor.deferred_sql.append(self.create_sql(model, schema_editor))

    def create_sql(  # type: ignore[override]
        self, model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor
    ) -> Statement:
        return self._build(
            get_dialect(schema_editor.connection).immutability_trigger.create, model, schema_editor
        )

    def remove_sql(  # type: ignore[override]
        self, model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor
    ) -> Statement:
        return self._build(
            get_dialect(schema_editor.connection).immutability_trigger.drop, model, schema_editor
        )

    def _build(
        self, template: str, model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor
    ) -> Statement:
        column = str(model._meta.get_field(self.field).column)  # type: ignore[union-attr]
        return Statement(
            template,
            name=schema_editor.quote_name(self.name),
            table=Table(model._meta.db_table, schema_editor.quote_name),
            column=schema_editor.quote_name(column),
            message=f"{column} cannot be changed",
        )

    def validate(self, *args: object, **kwargs: object) -> None:
        """Do nothing: the database itself refuses a change."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ImmutableField) and self.deconstruct() == other.deconstruct()

    def __hash__(self) -> int:
        return hash((self.name, self.field))

    def deconstruct(self) -> tuple[str, Sequence[object], dict[str, object]]:
        path, args, kwargs = super().deconstruct()
        return path, args, {**kwargs, "field": self.field}


class LongNamedIndex(models.Index):
    """An index that may have the name from the spec. Django's limit of 30 characters is for databases we do not support."""

    max_name_length = 63


class PollingIndex(LongNamedIndex):
    """A partial index, as small as the backlog; a full index where the database has no partial ones.

    `full` names the columns of the full index: those of the condition come first.
    """

    def __init__(self, *, full: tuple[str, ...], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.full = tuple(full)

    def create_sql(
        self, model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor, using: str = "", **kw: Any
    ) -> Any:
        if schema_editor.connection.features.supports_partial_indexes:
            return super().create_sql(model, schema_editor, using, **kw)
        return LongNamedIndex(fields=self.full, name=self.name).create_sql(model, schema_editor, using, **kw)

    def deconstruct(self) -> tuple[str, Sequence[object], dict[str, object]]:
        path, args, kwargs = super().deconstruct()
        return path, args, {**kwargs, "full": self.full}

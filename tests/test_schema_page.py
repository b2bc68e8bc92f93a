"""docs/schema.md has every column, index and constraint of the models, and the decisions explain those that were added."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db import models

from eventservice.db.constraints import CompositeForeignKey
from tests.test_schema import COLUMNS

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "schema.md").read_text()
ADDED_COLUMNS = (DOCS / "decisions" / "0004-columns.md").read_text()
GLOBAL_INDEXES = (DOCS / "decisions" / "0019-global-indexes-and-reads.md").read_text()
OWN_APPS = {"orchestration", "timers", "execution", "outbox", "tenants", "eventservice"}
MODELS: list[type[models.Model]] = [model for model in apps.get_models() if model._meta.app_label in OWN_APPS]


def get_table(model: type[models.Model]) -> str:
    return model._meta.db_table


def find_section(table: str) -> str:
    found = re.search(rf"^### {table}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/schema.md has no section {table}"
    return found[1]


def list_rows(section: str, header: str) -> list[list[str]]:
    """Return the cells of the table whose first column has this header."""
    found = re.search(rf"^\| {header} \|.*\n\|[-|]+\|\n((?:\|.*\n)*)", section, re.MULTILINE)
    return [row.strip("|").split("|") for row in found[1].splitlines()] if found else []


def list_names(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", text)


def list_columns(model: type[models.Model]) -> list[str]:
    return [str(field.column) for field in model._meta.local_concrete_fields]


def is_nullable(field: Any) -> bool:
    return bool(field.output_field.null if field.generated else field.null)


@pytest.mark.parametrize("model", MODELS, ids=get_table)
def test_the_page_has_the_columns_of_each_table(model: type[models.Model]) -> None:
    shown = [
        name for cells in list_rows(find_section(get_table(model)), "Column") for name in list_names(cells[0])
    ]
    assert sorted(shown) == sorted(list_columns(model))


@pytest.mark.parametrize("model", MODELS, ids=get_table)
def test_the_page_marks_the_columns_that_can_be_null(model: type[models.Model]) -> None:
    for names, kind, *_ in list_rows(find_section(get_table(model)), "Column"):
        fields = [field for field in model._meta.local_concrete_fields if field.column in list_names(names)]
        assert ("null" in kind) == any(is_nullable(field) for field in fields), names


@pytest.mark.parametrize("model", MODELS, ids=get_table)
def test_the_page_has_the_indexes_and_constraints_of_each_table(model: type[models.Model]) -> None:
    rows = list_rows(find_section(get_table(model)), "Index or constraint")
    shown = {name: re.split(r" where ", cells[1])[0] for cells in rows for name in list_names(cells[0])}
    declared: list[Any] = [*model._meta.indexes, *model._meta.constraints]
    assert set(shown) == {one.name for one in declared}
    for one in declared:
        if isinstance(one, models.Index | models.UniqueConstraint | CompositeForeignKey):
            columns = [str(model._meta.get_field(name).column) for name in one.fields]  # type: ignore[union-attr]
            assert list_names(shown[one.name]) == columns, one.name


def test_the_page_has_no_table_that_does_not_exist() -> None:
    assert set(re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)) == {get_table(model) for model in MODELS}


@pytest.mark.parametrize("table", COLUMNS)
def test_a_column_that_was_added_to_a_table_of_the_spec_has_a_reason(table: str) -> None:
    (model,) = (model for model in MODELS if get_table(model) == table)
    specified = {word.rstrip("*?") for word in COLUMNS[table].split()}
    section = ADDED_COLUMNS.partition(f"### Added to `{table}`")[2].partition("\n### ")[0]
    explained = [name for cells in list_rows(section, "Column") for name in list_names(cells[0])]
    assert sorted(explained) == sorted(set(list_columns(model)) - specified)


def test_an_index_that_does_not_begin_with_the_tenant_has_a_reason() -> None:
    global_indexes = {
        index.name
        for model in MODELS
        if "tenant_id" in list_columns(model)
        for index in model._meta.indexes
        if index.fields[0] != "tenant_id"
    }
    explained = [name for cells in list_rows(GLOBAL_INDEXES, "Index") for name in list_names(cells[0])]
    assert sorted(explained) == sorted(global_indexes)


def test_the_page_on_moving_modules_names_every_table() -> None:
    rows = list_rows((DOCS / "extraction.md").read_text(), "Tables")
    named = {name for cells in rows for name in list_names(cells[0])}
    assert named >= {get_table(model) for model in MODELS}

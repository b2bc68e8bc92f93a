"""docs/spec-coverage.md lists every statement of the specification once, and each file, test and name in it exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

HOME = Path(__file__).parents[1]
DOCS = HOME / "docs"
COUNTS = {"T": 39, "S": 49, "N": 22, "D": 39, "U": 15, "X": 20}
STATES = {"Yes", "Differs", "Partly", "Not yet", "–"}
PATH = re.compile(r"[\w./-]+/[\w./-]+|[\w-]+\.(?:md|toml|sh|py)")
NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


class Row(NamedTuple):
    id: str
    statement: str
    state: str
    where: str
    shown_by: str


def list_rows() -> list[Row]:
    lines = (DOCS / "spec-coverage.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [Row(*row) for row in cells if re.fullmatch(r"[A-Z]\d+", row[0])]


ROWS = list_rows()


def get_id(row: Row) -> str:
    return row.id


def list_code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def list_paths(cell: str) -> list[str]:
    return [code for code in list_code(cell) if PATH.fullmatch(code)]


def list_missing_names(cell: str) -> list[str]:
    """Return the names of a cell that do not occur in the file before them."""
    missing, path = [], ""
    for code in list_code(cell):
        if PATH.fullmatch(code):
            path = code
        elif path.endswith(".py") and NAME.fullmatch(code):
            text = (HOME / path).read_text()
            missing += [f"{path}: {part}" for part in code.split(".") if not re.search(rf"\b{part}\b", text)]
    return missing


def test_every_statement_is_listed_once() -> None:
    expected = [f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)]
    assert [row.id for row in ROWS] == expected


@pytest.mark.parametrize("row", ROWS, ids=get_id)
def test_what_a_row_names_exists(row: Row) -> None:
    cells = (row.where, row.shown_by)
    assert [path for cell in cells for path in list_paths(cell) if not (HOME / path).exists()] == []
    links = [link for cell in cells for link in re.findall(r"\]\(([^)#]+)[^)]*\)", cell)]
    assert [link for link in links if not (DOCS / link).is_file()] == []
    assert [name for cell in cells for name in list_missing_names(cell)] == []


@pytest.mark.parametrize("row", ROWS, ids=get_id)
def test_a_row_shows_what_its_state_says(row: Row) -> None:
    assert row.state in STATES
    if row.state in {"Yes", "Partly"}:
        assert list_paths(row.shown_by), "name a test"
    if row.state == "Differs":
        assert "](decisions/" in row.shown_by, "name the decision"
    if row.state == "Partly":
        assert row.where, "name what is missing"

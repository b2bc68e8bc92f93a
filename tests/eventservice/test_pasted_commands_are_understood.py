"""What README.md and docs say to paste: commands that there are, with options that they take, and variables that are set."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from eventservice.management.commands.up import _variables
from eventservice.tenants.models import Tenant

HOME = Path(__file__).parents[2]
PAGES = {path.name: path.read_text() for path in (HOME / "README.md", *(HOME / "docs").glob("*.md"))}
RUN = ".venv/bin/python manage.py "
LINES = sorted(
    {
        part.strip().removeprefix(RUN)
        for page in PAGES.values()
        for line in page.splitlines()
        if line.startswith("    ")
        for part in re.split(r"&&|\||\)", line)
        if part.strip().startswith(RUN)
    }
)
NAMED = sorted({name for page in PAGES.values() for name in re.findall(r"manage\.py (\w+)", page)})


@pytest.mark.parametrize("line", LINES)
def test_a_commands_options_are_those_that_it_takes(line: str) -> None:
    name, *given = shlex.split(line)
    command = load_command_class(get_commands()[name], name)
    command.create_parser("manage.py", name).parse_args(given)


@pytest.mark.parametrize("name", NAMED)
def test_a_command_that_is_named_exists(name: str) -> None:
    assert name in get_commands()


@pytest.mark.parametrize("page", PAGES)
def test_a_variable_is_one_that_make_run_prints_or_the_page_sets(page: str) -> None:
    code = "\n".join(line for line in PAGES[page].splitlines() if line.startswith("    "))
    known = {*_variables(8000, Tenant(), ""), *re.findall(r"\b([A-Z_]+)=", code)}
    assert set(re.findall(r"\$([A-Z_]+)\b", code)) - known == set()


def test_there_is_something_to_paste() -> None:
    assert {"migrate", "collectstatic --noinput", "clearsessions"} <= set(LINES)
    assert "reencrypt" in NAMED

"""Commands in README.md and docs/ exist, with the options that they use, and variables are defined."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from eventservice.management.commands.up import _build_variables
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
def test_the_options_of_a_command_exist(line: str) -> None:
    name, *given = shlex.split(line)
    command = load_command_class(get_commands()[name], name)
    command.create_parser("manage.py", name).parse_args(given)


@pytest.mark.parametrize("name", NAMED)
def test_a_command_that_is_mentioned_exists(name: str) -> None:
    assert name in get_commands()


@pytest.mark.parametrize("page", PAGES)
def test_a_variable_is_printed_by_make_run_or_set_on_the_page(page: str) -> None:
    code = "\n".join(line for line in PAGES[page].splitlines() if line.startswith("    "))
    known = {*_build_variables(8000, 9000, Tenant(), ""), *re.findall(r"\b([A-Z_]+)=", code)}
    # $JS.API is the beginning of a NATS subject.
    assert set(re.findall(r"\$([A-Z_]+)\b(?!\.)", code)) - known == set()


def test_the_pages_contain_commands() -> None:
    assert {"migrate", "collectstatic --noinput", "clearsessions"} <= set(LINES)
    assert "reencrypt" in NAMED

"""The script that starts servers for tests prints URLs that the project understands, and clear errors."""

from __future__ import annotations

import re
import subprocess

import pytest

from benchmarks.command_line import SERVICES, find_service_url
from benchmarks.processes import REPOSITORY
from eventservice.db.configuration import parse_database_url

README = (REPOSITORY / "tools/services/README.md").read_text()

pytestmark = pytest.mark.sqlite_only


def run_services(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SERVICES, *arguments], capture_output=True, text=True, timeout=30)


def test_every_service_is_documented_with_its_port() -> None:
    documented = dict(re.findall(r"^\| `(\w+)` \|.*\| (\d+) \|$", README, re.MULTILINE))

    assert list(documented) == run_services("list").stdout.split()
    for name, port in documented.items():
        assert f":{port}" in find_service_url(name)


@pytest.mark.parametrize("name", ["postgres", "postgres18", "mariadb", "mysql"])
def test_the_url_of_a_database_is_a_database_url(name: str) -> None:
    assert parse_database_url(find_service_url(name))["NAME"] == "test"


def test_an_unknown_name_is_an_error_that_lists_the_known_names() -> None:
    result = run_services("url", "sybase")

    assert result.returncode == 2
    assert "unknown name 'sybase'" in result.stderr
    assert "postgres" in result.stderr


def test_an_unknown_command_prints_the_usage() -> None:
    result = run_services("start", "postgres")

    assert result.returncode == 2
    assert "services up [NAME …]" in result.stdout

"""Production installs what the service needs and nothing else; everything else runs with the same versions."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

ROOT = Path(__file__).parents[1]
PRODUCT = ("eventservice", "orchestration", "timers", "execution", "outbox", "benchmarks")
TOOLS = ("pytest", "hypothesis", "schemathesis", "playwright", "mypy", "ruff", "factory-boy")


def read_lock(name: str) -> dict[str, str]:
    """Return the versions of a lock by the names of the packages."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / name).read_text(), re.M))


PRODUCTION, DEVELOPMENT = read_lock("requirements.lock"), read_lock("requirements-dev.lock")


def list_imports() -> set[str]:
    """Return the names of the modules that the product imports, without those of packages within them."""
    names: set[str] = set()
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names.add(node.module.partition(".")[0])
    return names


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_product_imports_only_what_production_installs() -> None:
    distributions = packages_distributions()
    missing = {
        name: distributions[name]
        for name in list_imports() - sys.stdlib_module_names
        if name in distributions
        and not {normalize(one) for one in distributions[name]} & {normalize(one) for one in PRODUCTION}
    }
    assert missing == {}


def test_production_installs_no_tools() -> None:
    assert set(TOOLS) & set(PRODUCTION) == set()
    assert set(TOOLS) <= set(DEVELOPMENT)


def test_development_has_the_versions_of_production() -> None:
    assert {name: DEVELOPMENT.get(name) for name in PRODUCTION} == PRODUCTION


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_a_lock_has_hashes_and_names_no_index(name: str) -> None:
    text = (ROOT / name).read_text()
    assert len(re.findall(r"==.*\\\n    --hash=sha256:", text)) == len(read_lock(name))
    assert not re.search(r"https?:|file:|--(extra-)?index-url|--find-links", text)


def test_a_package_cannot_be_built_and_the_reason_is_shown() -> None:
    code = "import no_package; no_package.get_requires_for_build_wheel(None)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "tools", capture_output=True, text=True)
    assert done.returncode == 1
    assert "make install" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_test_command_of_django_does_not_report_success() -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "test", "tests.api", "--parallel", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "make test" in done.stderr
    with pytest.raises(CommandError, match="pytest"):
        call_command("test", stdout=StringIO())

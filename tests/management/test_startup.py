"""`manage.py` starts without the packages that only some commands or processes need."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.source_rules import ROOT

pytestmark = pytest.mark.sqlite_only

# Each takes several milliseconds to import. A command imports what it needs itself.
HEAVY_PACKAGES = {
    "cryptography",
    "drf_spectacular.openapi",
    "gunicorn",
    "orchestration.lifecycle",
    "pycurl",
    "pydantic",
    "requests",
    "rest_framework.views",
    "rich",
    "structlog",
}
PROGRAM = """
import contextlib, io, json, sys
from django.core.management import execute_from_command_line
with contextlib.redirect_stdout(io.StringIO()):
    execute_from_command_line(["manage.py", "help"])
print(json.dumps(list(sys.modules)))
"""


def test_help_imports_no_package_that_only_some_commands_need() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )

    modules = set(json.loads(result.stdout))
    assert "orchestration.admin" in modules
    assert not HEAVY_PACKAGES & modules

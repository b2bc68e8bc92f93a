"""`manage.py newkey` works before there are valid settings: it makes what they lack."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from cryptography.fernet import Fernet

from eventservice.kernel.env import ENV_FILE
from tests.source_rules import ROOT

pytestmark = pytest.mark.sqlite_only


@pytest.mark.parametrize(
    "variables",
    [
        {"ENCRYPTION_KEYS": "broken"},
        {"ENVIRONMENT": "production"},
        {ENV_FILE: "/no/such/file"},
        {"DATABASE_URL": "oracle://x"},
    ],
    ids=str,
)
def test_a_key_is_created_without_valid_settings(variables: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "newkey"],
        cwd=ROOT,
        env={**os.environ, ENV_FILE: os.devnull, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    Fernet(done.stdout.strip())

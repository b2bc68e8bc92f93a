"""What must be right before the system runs is asked at boot, and refused with what to do about it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from eventservice.kernel.checks import encryption_keys, production

BASE_DIR = Path(__file__).resolve().parents[2]
COMPLETE = {
    "ENVIRONMENT": "production",
    "SECRET_KEY": "s" * 60,
    "ENCRYPTION_KEYS": Fernet.generate_key().decode(),
    "ALLOWED_HOSTS": "calls.example.test",
}


def check(folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "DB_PATH": str(folder / "check.db"), **variables}
    command = [sys.executable, str(BASE_DIR / "manage.py"), "check"]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def test_a_complete_production_environment_boots(tmp_path: Path) -> None:
    done = check(tmp_path, COMPLETE)
    assert done.returncode == 0, done.stderr


def test_development_needs_nothing(tmp_path: Path) -> None:
    done = check(tmp_path, {})
    assert done.returncode == 0, done.stderr


def test_production_without_its_secrets_does_not_boot_and_says_why(tmp_path: Path) -> None:
    done = check(tmp_path, {"ENVIRONMENT": "production", "DB_LOCK_SECONDS": "soon"})
    assert done.returncode != 0
    assert "SECRET_KEY is not set" in done.stderr
    assert "DB_LOCK_SECONDS is 'soon'" in done.stderr


def test_production_without_keys_and_hosts_fails_the_check_with_what_to_do(tmp_path: Path) -> None:
    done = check(tmp_path, {"ENVIRONMENT": "production", "SECRET_KEY": "s" * 60, "DEBUG": "1"})
    assert done.returncode == 1
    for code in ("eventservice.E001", "eventservice.E002", "eventservice.E003"):
        assert code in done.stderr
    assert "newkey" in done.stderr


@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [("ENCRYPTION_KEYS", [], "E001"), ("DEBUG", True, "E002"), ("ALLOWED_HOSTS", [], "E003")],
)
def test_each_fault_has_its_own_number_and_a_hint(setting: str, value: Any, code: str, settings: Any) -> None:
    settings.PRODUCTION, settings.DEBUG = True, False
    settings.ENCRYPTION_KEYS, settings.ALLOWED_HOSTS = [COMPLETE["ENCRYPTION_KEYS"]], ["calls.example.test"]
    assert production() == []
    setattr(settings, setting, value)
    (fault,) = production()
    assert fault.id == f"eventservice.{code}"
    assert fault.hint


def test_outside_production_they_are_allowed(settings: Any) -> None:
    settings.PRODUCTION, settings.DEBUG, settings.ENCRYPTION_KEYS = False, True, []
    assert production() == []


def test_a_key_that_is_none_is_told_by_its_place_and_never_shown(settings: Any) -> None:
    settings.ENCRYPTION_KEYS = [COMPLETE["ENCRYPTION_KEYS"], "nearly-a-secret"]
    (fault,) = encryption_keys()
    assert fault.id == "eventservice.E005"
    assert "key 2" in fault.msg
    assert "nearly-a-secret" not in f"{fault.msg}{fault.hint}"

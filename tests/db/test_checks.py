"""Invalid settings are refused at start, with what to do about them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

# Each process has the environment of its test, whatever the database of the others.
pytestmark = pytest.mark.sqlite_only

BASE_DIR = Path(__file__).resolve().parents[2]
COMPLETE = {
    "ENVIRONMENT": "production",
    "SECRET_KEY": "0123456789abcdef" * 4,
    "ENCRYPTION_KEYS": Fernet.generate_key().decode(),
    "ALLOWED_HOSTS": "calls.example.test",
}


def check(folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return run(["manage.py", "check"], folder, variables)


def load_settings(folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Load the settings alone, which refuse invalid variables. It takes a tenth of the time of a check."""
    return run(["-c", "import eventservice.settings"], folder, variables)


def run(arguments: list[str], folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "DB_PATH": str(folder / "check.db"), **variables}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=env, cwd=BASE_DIR, capture_output=True, text=True, timeout=60)


def test_a_complete_production_environment_is_accepted(tmp_path: Path) -> None:
    done = check(tmp_path, COMPLETE)
    assert done.returncode == 0, done.stderr


def test_development_needs_nothing(tmp_path: Path) -> None:
    done = check(tmp_path, {})
    assert done.returncode == 0, done.stderr


def test_production_is_refused_with_every_variable_that_is_missing_or_wrong(tmp_path: Path) -> None:
    done = check(
        tmp_path,
        {"ENVIRONMENT": "production", "DEBUG": "1", "DB_LOCK_SECONDS": "soon", "FAULTS": "start.sent=kill"},
    )
    assert done.returncode != 0
    for name in ("SECRET_KEY", "ENCRYPTION_KEYS", "ALLOWED_HOSTS"):
        assert f"  {name} must be set when ENVIRONMENT is production: expected" in done.stderr
    assert "  DEBUG must be false or unset when ENVIRONMENT is production, not '1'" in done.stderr
    assert "  DB_LOCK_SECONDS must be an integer between 1 and 3600, not 'soon'" in done.stderr
    assert "  FAULTS must be unset when ENVIRONMENT is production, not 'start.sent=kill'" in done.stderr


def test_an_invalid_entry_of_the_allow_list_is_refused(tmp_path: Path) -> None:
    done = load_settings(tmp_path, {"EGRESS_ALLOW": "127.0.0.1:9000, foo"})
    assert done.returncode != 0
    assert "EGRESS_ALLOW, item 2: allow-list entry 'foo' must end in a port" in done.stderr


def test_an_invalid_key_is_reported_by_its_position_and_never_shown(tmp_path: Path) -> None:
    keys = f"{COMPLETE['ENCRYPTION_KEYS']},nearly-a-secret"
    done = check(tmp_path, {**COMPLETE, "ENCRYPTION_KEYS": keys})
    assert done.returncode != 0
    assert "ENCRYPTION_KEYS, item 2: not a valid key" in done.stderr
    assert "nearly-a-secret" not in done.stderr


POSTGRESQL = {"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none"}  # nothing connects


def test_a_lock_timeout_of_more_than_half_a_lease_is_warned_of(tmp_path: Path) -> None:
    wrong = check(tmp_path, {**POSTGRESQL, "DB_LOCK_SECONDS": "10"})
    assert "eventservice.W002" in wrong.stderr


@pytest.mark.parametrize(
    ("variables", "rule"),
    [
        (
            {"DB_STATEMENT_SECONDS": "11"},
            "DB_CONNECT_SECONDS + DB_STATEMENT_SECONDS + 3 (17 s) must not exceed SLICE_SECONDS + DB_LOCK_SECONDS + 5 (16 s)",
        ),
        ({"DB_CONNECT_SECONDS": "9"}, "DB_CONNECT_SECONDS + DB_STATEMENT_SECONDS + 3 (18 s) must not exceed"),
        ({"SLICE_SECONDS": "2"}, "(12 s) must not exceed SLICE_SECONDS + DB_LOCK_SECONDS + 5 (11 s)"),
        ({"DB_STATEMENT_SECONDS": "4"}, "DB_LOCK_SECONDS (4 s) must be less than DB_STATEMENT_SECONDS (4 s)"),
    ],
)
def test_waits_that_contradict_each_other_are_refused(
    variables: dict[str, str], rule: str, tmp_path: Path
) -> None:
    done = check(tmp_path, {**POSTGRESQL, **variables})
    assert done.returncode != 0
    assert done.stderr.count("eventservice.E010") == 1
    assert rule in done.stderr


@pytest.mark.parametrize("database", [POSTGRESQL, {"DATABASE_URL": "mariadb://nobody@127.0.0.1:1/none"}])
def test_the_default_waits_are_in_order(database: dict[str, str], tmp_path: Path) -> None:
    done = check(tmp_path, database)
    assert "eventservice.E010" not in done.stderr
    assert "eventservice.W002" not in done.stderr


def test_an_invalid_port_is_refused(tmp_path: Path) -> None:
    done = load_settings(tmp_path, {"PORT": "abc", "TARGET_PORT": "70000"})
    assert "PORT must be an integer between 1 and 65535, not 'abc'" in done.stderr
    assert "TARGET_PORT must be an integer between 1 and 65535, not '70000'" in done.stderr


def test_production_takes_exceptions_for_single_forbidden_addresses_only(tmp_path: Path) -> None:
    for wide in ("127.0.0.1:*", "127.0.0.0/8:80", "[::1]:*", "0.0.0.0/0:443", "[::/0]:443"):
        done = load_settings(tmp_path, {**COMPLETE, "EGRESS_ALLOW": f"127.0.0.1:9000,{wide}"})
        assert done.returncode != 0, wide
        assert f"EGRESS_ALLOW, item 2: allow-list entry {wide!r} allows several forbidden" in done.stderr
    for exact in ("127.0.0.1:9000", "10.0.0.0/8:443", "[fd12::/16]:*"):
        done = load_settings(tmp_path, {**COMPLETE, "EGRESS_ALLOW": exact})
        assert done.returncode == 0, done.stderr


def read_egress_allow(folder: Path, variables: dict[str, str]) -> list[str]:
    code = "from eventservice.settings import EGRESS_ALLOW; print('\\n'.join(EGRESS_ALLOW))"
    done = run(["-c", code], folder, variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_only_development_allows_loopback_by_default(tmp_path: Path) -> None:
    assert read_egress_allow(tmp_path, COMPLETE) == []
    assert read_egress_allow(tmp_path, {}) == ["127.0.0.0/8:*", "[::1]:*"]
    added = read_egress_allow(tmp_path, {"EGRESS_ALLOW": "10.0.0.1:80"})
    assert added == ["127.0.0.0/8:*", "[::1]:*", "10.0.0.1:80"]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SECRET_KEY": "short"}, "SECRET_KEY must be a long random string when ENVIRONMENT is production: "),
        ({"SECRET_KEY": "development-only-" + "k" * 40}, "this one is published in source code"),
        (
            {"SECRET_KEY": "django-insecure-0123456789abcdefghijklmnop"},
            "this one is published in source code",
        ),
        ({"SECRET_KEY": "k" * 64}, "this one repeats a few characters"),
        (
            {"SECRET_KEY_FALLBACKS": "development-only-" + "k" * 40},
            "SECRET_KEY_FALLBACKS must be long random",
        ),
        ({"ALLOWED_HOSTS": "calls.example,*"}, "ALLOWED_HOSTS, item 2: '*' is refused in production"),
        ({"EGRESS_ALLOW": "127.0.0.1:*"}, "EGRESS_ALLOW, item 1"),
        ({"EGRESS_ALLOW": "0.0.0.0/0:*"}, "EGRESS_ALLOW, item 1"),
        ({"EGRESS_ALLOW": "[::1]:*"}, "EGRESS_ALLOW, item 1"),
        (
            {"CLUSTER_NAME": "eu/blue"},
            "CLUSTER_NAME must be 1 to 29 letters (a-z, A-Z), digits, dots, dashes",
        ),
        ({"CLUSTER_NAME": " "}, "CLUSTER_NAME must be unset, or 1 to 29 letters"),
        ({"Q_CLUSTER_NAME": "two words"}, "Q_CLUSTER_NAME must be 1 to 29 letters"),
        ({"PUBLISHERS": "log,kafka"}, "PUBLISHERS, item 2: 'kafka' is not one of log, webhook, or name=url"),
        ({"PUBLISHERS": "a=redis://b.test,a=redis://c.test"}, "PUBLISHERS: two publishers are called a"),
    ],
)
def test_what_would_make_production_unsafe_is_refused_by_name(
    tmp_path: Path, variables: dict[str, str], message: str
) -> None:
    done = load_settings(tmp_path, {**COMPLETE, **variables})
    assert done.returncode != 0
    assert message in done.stderr
    if "KEY" in next(iter(variables)):
        assert variables.popitem()[1] not in done.stderr

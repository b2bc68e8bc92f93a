"""`manage.py doctor` tells what is wrong with an installation, and what to do about it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core.management import call_command
from django.db import connection

from eventservice.kernel import secrets
from eventservice.kernel.now import DbNow
from eventservice.kernel.secrets import encrypt
from eventservice.management.commands import doctor
from eventservice.models import Slot
from eventservice.tenants.models import Tenant
from tests.factories import TenantFactory
from timers.models import Node
from timers.public import Membership

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"


def examine() -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the findings by their names."""
    out = StringIO()
    code = 0
    try:
        call_command("doctor", "--json", stdout=out)
    except SystemExit as ended:
        code = int(str(ended.code))
    report = json.loads(out.getvalue())
    assert report["ok"] == (code == 0)
    return code, {finding["name"]: finding for finding in report["findings"]}


def assert_wrong(name: str, *, says: str = "") -> None:
    code, findings = examine()
    assert code == 1
    assert not findings[name]["ok"]
    assert says in findings[name]["detail"]
    assert findings[name]["advice"]


@pytest.fixture
def engine(db: None) -> Membership:
    """An engine that lives, without which the doctor is never content."""
    membership = Membership()
    membership.join()
    return membership


@pytest.fixture
def keys(settings: Any) -> Iterator[Callable[..., None]]:
    def use(*given: str) -> None:
        settings.ENCRYPTION_KEYS = list(given)
        secrets._fernet.cache_clear()

    yield use
    secrets._fernet.cache_clear()


def test_a_sound_installation_is_found_so(engine: Membership, tenant: Tenant) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(signing_secret=encrypt("s3cret"))
    code, findings = examine()
    assert [finding for finding in findings.values() if not finding["ok"]] == []
    assert code == 0
    assert findings["environment"]["detail"] == "development"
    assert connection.display_name in findings["database"]["detail"]
    assert findings["stored secrets"]["detail"] == "1, all open"
    assert findings["engine"]["detail"] == "1 alive, 0 silent"


def test_it_leaves_nothing_behind(engine: Membership) -> None:
    def counts() -> list[int]:
        return [model.objects.count() for model in (Slot, Tenant, Node)]

    before = counts()
    examine()
    assert counts() == before


def test_people_get_a_table_with_advice_for_what_is_wrong(db: None) -> None:
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("doctor", stdout=out)
    text = " ".join(out.getvalue().split())
    assert "WRONG" in text
    assert "engine" in text
    assert "cluster" in text


def test_no_engine_is_wrong(db: None) -> None:
    assert_wrong("engine", says="0 alive")


def test_an_engine_that_has_fallen_silent_does_not_count(engine: Membership) -> None:
    Node.objects.update(lease_until=DbNow(timedelta(seconds=-1)))
    assert_wrong("engine", says="0 alive, 1 silent")


def test_a_clock_that_differs_is_wrong(engine: Membership, at_noon: datetime) -> None:
    assert_wrong("clock")


def test_a_secret_that_no_key_opens_is_wrong_and_named(engine: Membership, keys: Callable[..., None]) -> None:
    keys(Fernet.generate_key().decode())
    TenantFactory(name="acme", signing_secret=encrypt("s3cret"))
    keys(Fernet.generate_key().decode())
    assert_wrong("stored secrets", says="1 of 1 cannot be opened: signing secret of tenant acme")


def test_a_key_that_is_none_is_wrong_and_not_shown(engine: Membership, keys: Callable[..., None]) -> None:
    keys(Fernet.generate_key().decode(), "hunter2")
    assert_wrong("encryption keys", says="No. 2 of ENCRYPTION_KEYS is not a Fernet key.")
    assert "hunter2" not in json.dumps(examine())


def test_production_without_keys_is_wrong(
    engine: Membership, settings: Any, keys: Callable[..., None]
) -> None:
    keys()
    settings.PRODUCTION = True
    assert_wrong("encryption keys")
    assert_wrong("check eventservice.E001")


def test_a_migration_that_is_missing_is_wrong(engine: Membership) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'timers'")
    assert_wrong("migrations", says="timers.0001_initial")


@pytest.mark.sqlite_only
def test_too_little_room_beside_the_file_is_wrong(
    engine: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "LEAST_FREE_BYTES", 1 << 60)
    assert_wrong("disk space")


@pytest.mark.sqlite_only
def test_a_pragma_that_is_not_as_it_should_be_is_wrong(engine: Membership) -> None:
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 1")
    try:
        assert_wrong("sqlite pragmas", says="busy_timeout=1")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 5000")


def run(url: str) -> tuple[int, dict[str, dict[str, Any]]]:
    env = {"PATH": os.environ["PATH"], "DATABASE_URL": url}
    done = subprocess.run(
        [sys.executable, str(MANAGE), "doctor", "--json"], env=env, capture_output=True, timeout=60
    )
    return done.returncode, {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}


@pytest.mark.parametrize(
    "url", ["postgres://me:hunter2@127.0.0.1:1/calls", "mysql://me:hunter2@127.0.0.1:1/calls"]
)
def test_a_database_that_does_not_answer_is_wrong_and_its_password_not_shown(url: str) -> None:
    code, findings = run(url)
    assert code == 1
    assert not findings["database"]["ok"]
    assert "calls at 127.0.0.1:1" in findings["database"]["detail"]
    assert "hunter2" not in json.dumps(findings)


def test_an_empty_database_is_told_to_migrate_and_nothing_breaks(tmp_path: Path) -> None:
    code, findings = run(f"sqlite:///{tmp_path / 'new.db'}")
    assert code == 1
    assert not findings["migrations"]["ok"]
    assert "manage.py migrate" in findings["migrations"]["advice"]
    assert not findings["writing"]["ok"]
    assert findings["sqlite pragmas"]["ok"]

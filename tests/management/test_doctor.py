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

from eventservice.db.now import DbNow, pin_time
from eventservice.kernel import secrets
from eventservice.kernel.secrets import encrypt
from eventservice.management.commands import doctor
from eventservice.runtime.models import Slot
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant
from orchestration.commands import RequestSpec
from orchestration.lifecycle import cancel
from orchestration.states import Status
from outbox.models import OutboxEvent
from outbox.parking import park
from tests.factories import ServiceCallFactory, TenantFactory
from tests.orchestration.support import submit as submit_call
from timers.membership import Membership
from timers.models import Node, NodeRole

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
    """An engine and a dispatcher that live, without which the doctor is never content."""
    Membership(NodeRole.DISPATCHER).join()
    membership = Membership()
    membership.join()
    return membership


@pytest.fixture
def acme(db: None) -> Tenant:
    """Create a tenant with a namespace, so that it can submit."""
    return create_tenant("acme")


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
    # The database's time is that of the test's transaction, which may have begun a while ago.
    assert [name for name, finding in findings.items() if not finding["ok"] and name != "clock"] == []
    assert code == 0 or not findings["clock"]["ok"]
    assert findings["environment"]["detail"].startswith("development: ")
    assert connection.display_name in findings["database"]["detail"]
    assert findings["stored secrets"]["detail"] == "1 can be decrypted"
    assert findings["engine"]["detail"] == "1 engine running."


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


def test_names_of_the_settings_file_that_are_no_settings_are_reported(
    engine: Membership, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings"
    file.write_text("DB_PATH=x\nALOWED_HOSTS=calls.example\nEVENTSERVICE_KEY=k\nTZ=UTC\n")
    monkeypatch.setenv("ENV_FILE", str(file))
    finding = examine()[1]["settings file"]
    assert finding["severity"] == "warning"
    assert (
        f"{file} has names that are no settings: ALOWED_HOSTS (did you mean ALLOWED_HOSTS?), TZ."
        == finding["detail"]
    )
    file.write_text("LOG_LEVEL=INFO\nSSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt\n")
    assert examine()[1]["settings file"]["detail"] == f"{file}: 2 settings"
    file.unlink()
    assert examine()[1]["settings file"]["ok"]


def test_a_missing_file_of_certificate_authorities_is_reported(
    engine: Membership, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "authorities.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    finding = examine()[1]["certificate authorities"]
    assert finding["severity"] == "warning"
    assert finding["detail"].startswith(f"SSL_CERT_FILE={file}: there is no such file")
    file.touch()
    found = examine()[1]["certificate authorities"]
    assert found["ok"]
    assert f"SSL_CERT_FILE={file}" in found["detail"]


def test_a_settings_file_that_others_can_read_is_reported(
    engine: Membership, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "service"
    folder.mkdir(mode=0o755)
    file = folder / ".env"
    file.touch()
    monkeypatch.setenv("ENV_FILE", str(file))
    for mode, severity in ((0o600, "ok"), (0o640, "warning"), (0o604, "warning")):
        file.chmod(mode)
        finding = examine()[1]["settings file permissions"]
        assert (finding["severity"], f"Run `chmod go= {file}`." == finding["advice"]) == (
            severity,
            severity == "warning",
        )


def test_static_files_that_were_not_collected_are_wrong_in_production(
    engine: Membership, settings: Any, tmp_path: Path
) -> None:
    settings.WHITENOISE_USE_FINDERS = False
    settings.STATIC_ROOT = tmp_path
    assert_wrong("static files", says="missing or outdated")
    call_command("collectstatic", interactive=False, verbosity=0)
    assert examine()[1]["static files"]["ok"]


def test_static_files_of_an_older_version_are_wrong(
    engine: Membership, settings: Any, tmp_path: Path
) -> None:
    settings.WHITENOISE_USE_FINDERS = False
    settings.STATIC_ROOT = tmp_path
    call_command("collectstatic", interactive=False, verbosity=0)
    (tmp_path / "console" / "console.css").write_text("body { color: red }")
    assert_wrong("static files", says="1 missing or outdated in")


def test_no_engine_is_wrong(db: None) -> None:
    assert_wrong("engine", says="No engine is running")


def test_an_engine_that_has_fallen_silent_does_not_count(engine: Membership) -> None:
    Node.objects.filter(pk=engine.owner_id).update(lease_until=DbNow(timedelta(seconds=-1)))
    assert_wrong("engine", says="No engine is running")
    assert "has stopped sending heartbeats" in examine()[1]["dead node"]["detail"]


def test_a_dispatcher_is_no_engine(db: None) -> None:
    Membership(NodeRole.DISPATCHER).join()
    assert_wrong("engine", says="No engine is running")
    assert examine()[1]["dispatcher"]["ok"]


def test_no_dispatcher_is_wrong(db: None) -> None:
    Membership().join()
    assert_wrong("dispatcher", says="No dispatcher is running")
    assert examine()[1]["engine"]["ok"]


def test_a_call_that_has_been_due_for_long_is_wrong(
    engine: Membership, acme: Tenant, at_noon: datetime
) -> None:
    submit_call(acme)
    with pin_time(at_noon + timedelta(seconds=20)):
        assert examine()[1]["overdue calls"]["ok"]
    with pin_time(at_noon + timedelta(minutes=3)):
        assert_wrong("overdue calls", says="1 call is overdue, the oldest by 3 m")


def test_a_running_call_past_its_deadline_is_wrong(engine: Membership, acme: Tenant) -> None:
    ServiceCallFactory(
        tenant_id=acme.tenant_id, status=Status.RUNNING, deadline_at=DbNow(timedelta(minutes=-1))
    )
    assert_wrong("lost calls", says="1 running call is past the deadline")


def test_events_that_wait_for_long_are_wrong(engine: Membership, acme: Tenant, at_noon: datetime) -> None:
    submit_call(acme)
    with pin_time(at_noon + timedelta(minutes=3)):
        assert_wrong("waiting events", says="the oldest for 3 m")


def test_a_parked_event_is_wrong(engine: Membership, acme: Tenant) -> None:
    submit_call(acme)
    event = OutboxEvent.objects.for_tenant(acme.tenant_id).earliest("id")
    park(event.pk, "nobody wants it")
    assert_wrong("parked events", says="1")


@pytest.mark.skipif(connection.vendor != "postgresql", reason="about PostgreSQL's own statistics")
def test_a_table_with_rows_and_no_statistics_yet_is_wrong(engine: Membership) -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE restored AS SELECT generate_series(1, 6000) AS n")
        cursor.execute("CREATE INDEX ON restored (n)")  # as after the rows of a dump
        assert_wrong("planner statistics", says="restored")
        cursor.execute("ANALYZE restored")
        assert examine()[1]["planner statistics"]["ok"]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="about PostgreSQL's own statistics")
def test_a_table_whose_rows_are_gone_again_needs_no_statistics(engine: Membership) -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE emptied AS SELECT generate_series(1, 6000) AS n")
        cursor.execute("DELETE FROM emptied")
        assert examine()[1]["planner statistics"]["ok"]


def test_a_clock_that_differs_is_wrong(engine: Membership, at_noon: datetime) -> None:
    assert_wrong("clock")


def test_a_secret_that_no_key_opens_is_wrong_and_named(engine: Membership, keys: Callable[..., None]) -> None:
    keys(Fernet.generate_key().decode())
    TenantFactory(name="acme", signing_secret=encrypt("s3cret"))
    keys(Fernet.generate_key().decode())
    assert_wrong("stored secrets", says="1 of 1 cannot be decrypted: signing secret of tenant acme")


def test_a_header_of_a_waiting_call_that_no_key_opens_is_wrong_and_named(
    engine: Membership, acme: Tenant, keys: Callable[..., None]
) -> None:
    keys(Fernet.generate_key().decode())
    request = RequestSpec("GET", "http://target.test/", {"Authorization": "s3cret"})
    lost, ended = submit_call(acme, request=request), submit_call(acme, request=request)
    cancel(acme.tenant_id, ended)
    keys(Fernet.generate_key().decode())
    assert_wrong("stored secrets", says=f"1 of 1 cannot be decrypted: header Authorization of call {lost}")


def test_of_many_waiting_calls_those_due_first_and_last_are_opened(
    engine: Membership, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "MAX_CALLS_OPENED", 2)
    request = RequestSpec("GET", "http://target.test/", {"Authorization": "s3cret"})
    for hours in range(5):
        submit_call(acme, request=request, delay=timedelta(hours=hours))
    assert examine()[1]["stored secrets"]["detail"] == "2 can be decrypted"


def test_a_migration_that_is_missing_is_wrong(engine: Membership) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'timers'")
    assert_wrong("migrations", says="timers.0001_initial")


@pytest.mark.sqlite_only
def test_too_little_room_beside_the_file_is_wrong(
    engine: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventservice.db.dialects.sqlite.health.MIN_FREE_BYTES", 1 << 60)
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


def test_a_database_that_does_not_exist_is_wrong_and_not_created(tmp_path: Path) -> None:
    code, findings = run(f"sqlite:///{tmp_path / 'new.db'}")
    assert code == 1
    assert findings["database"]["detail"].startswith("The database does not exist.")
    assert "run `manage.py migrate`" in findings["database"]["advice"]
    assert list(tmp_path.iterdir()) == []


def test_an_empty_database_is_told_to_migrate_and_nothing_breaks(tmp_path: Path) -> None:
    (tmp_path / "new.db").touch(mode=0o600)
    code, findings = run(f"sqlite:///{tmp_path / 'new.db'}")
    assert code == 1
    assert not findings["migrations"]["ok"]
    assert "manage.py migrate" in findings["migrations"]["advice"]
    assert findings["writing"]["detail"] == "The database has no tables yet."
    assert "manage.py migrate" in findings["writing"]["advice"]
    assert findings["sqlite pragmas"]["ok"]
    # What needs tables is not reported as a fault of its own.
    assert {name for name, finding in findings.items() if not finding["ok"]} == {"migrations", "writing"}

"""`make run` prints how to use the system, and writes a profile by which client commands work at once."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command

from eventservice.devtools.supervisor import Supervisor
from eventservice.management.commands import up
from eventservice.management.profile import format_path, get_profile_path, read_profile, write_profile
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.keys import create_key, find_key
from eventservice.tenants.models import ApiKey, Tenant

pytestmark = [pytest.mark.sqlite_only, pytest.mark.django_db]  # what it prints is the same everywhere


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervisor, "run", lambda self: 0)
    monkeypatch.setattr(up, "require_free_ports", lambda ports, defaults: None)
    # `migrate` closes the connection, and with it the transaction of the test.
    monkeypatch.setattr(up, "call_command", lambda *args, **options: None)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def start(port: int = 8137) -> str:
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("up", port=port, target_port=9137, stdout=out)
    return out.getvalue()


def test_the_first_start_prints_credentials_and_writes_a_profile() -> None:
    output = start()
    profile = read_profile()
    assert profile["EVENTSERVICE_URL"] == "http://127.0.0.1:8137"
    key = find_key(profile["EVENTSERVICE_KEY"])
    assert key is not None
    assert str(key.tenant_id) == profile["EVENTSERVICE_TENANT"]
    for line in (
        f"API key: {profile['EVENTSERVICE_KEY']}",
        f"Profile: {get_profile_path()}",
        f"Tenant: demo ({key.tenant_id})",
        "User: admin",
    ):
        assert line in output.splitlines()
    assert f"    . {format_path(get_profile_path())}\n" in output
    assert "Password: " in output


def test_later_starts_keep_the_key_and_print_no_secret() -> None:
    start()
    profile = read_profile()
    output = start(port=8138)
    assert read_profile() == {**profile, "EVENTSERVICE_URL": "http://127.0.0.1:8138"}
    assert ApiKey.across_tenants.count() == 1
    assert profile["EVENTSERVICE_KEY"] not in output
    assert "Password: " not in output
    assert "User: admin. Change the password: " in output
    assert "manage.py changepassword admin" in output
    assert "export" not in output


@pytest.mark.parametrize("key", ["", "es_dev_of_another_database"])
def test_a_missing_or_unknown_key_is_replaced(key: str) -> None:
    start()
    profile = read_profile()
    write_profile({**profile, "EVENTSERVICE_KEY": key})
    start()
    assert find_key(read_profile()["EVENTSERVICE_KEY"]) is not None


def test_a_key_of_another_tenant_is_replaced() -> None:
    start()
    other = create_key(create_tenant("other").tenant_id, ["read"])[1]
    write_profile({**read_profile(), "EVENTSERVICE_KEY": other})
    start()
    assert read_profile()["EVENTSERVICE_KEY"] != other


@pytest.mark.parametrize("is_handwritten", [False, True])
def test_a_profile_that_up_did_not_write_stays_as_it_is(is_handwritten: bool) -> None:
    """A handwritten one may belong to another machine in spite of its URL, which may be that of a tunnel."""
    url = "http://127.0.0.1:8000" if is_handwritten else "https://calls.example"
    path = write_profile({"EVENTSERVICE_URL": url, "EVENTSERVICE_KEY": "es_live_a_b"})
    if is_handwritten:
        path.write_text(f"EVENTSERVICE_URL={url}\nEVENTSERVICE_KEY=es_live_a_b\n")
    content = path.read_text()
    first, second = start(), start()
    assert path.read_text() == content
    for output in (first, second):
        assert "was not written by `make run` for this machine, and stays as it is" in output
        assert "    export EVENTSERVICE_URL=http://127.0.0.1:8137\n" in output
    assert "    export EVENTSERVICE_KEY=es_dev_" in first
    assert "EVENTSERVICE_KEY" not in second
    assert "manage.py apikey create --tenant demo" in second


def test_an_empty_profile_is_replaced() -> None:
    write_profile({}).write_text("\n")
    start()
    assert find_key(read_profile()["EVENTSERVICE_KEY"]) is not None


def test_a_folder_that_cannot_be_written_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/nowhere")
    output = start()
    assert "The profile could not be written (" in output
    assert "    export EVENTSERVICE_KEY=es_dev_" in output


def test_the_profile_includes_the_path_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PATH", "some where.db")
    start()
    assert read_profile()["DB_PATH"] == f"{settings.BASE_DIR}/some where.db"


def test_the_profile_includes_the_port_of_the_target() -> None:
    start()
    assert read_profile()["TARGET_PORT"] == "9137"


def test_other_ports_than_the_documented_ones_are_mentioned() -> None:
    message = "The documentation's commands use the ports 8000 and 9000: replace them by"
    assert f"{message} 8137 and 9137." in start()
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("up", port=8000, target_port=9000, stdout=out)
    assert message not in out.getvalue()


def test_a_superuser_who_exists_already_is_named_and_keeps_the_password() -> None:
    user = get_user_model().objects.create_superuser("admin", password="own-password")
    output = start()
    assert "Password: " not in output
    assert "User: admin. Change the password: " in output
    user.refresh_from_db()
    assert user.check_password("own-password")


def test_without_a_superuser_a_later_start_says_how_to_create_one() -> None:
    create_tenant(up.DEMO)
    assert "manage.py createsuperuser" in start()


def test_a_failed_first_start_is_repeated_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(up, "_create_admin", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            call_command("up", stdout=StringIO())
    assert not Tenant.objects.filter(name=up.DEMO).exists()
    assert read_profile() == {}
    assert "Password: " in start()


def test_the_introduction_says_that_calls_can_reach_this_machine() -> None:
    assert "can reach servers on this machine, because ENVIRONMENT is development" in start()


def test_production_is_refused_before_anything_is_created(settings: Any) -> None:
    settings.PRODUCTION = True
    with pytest.raises(CommandError, match="`up` is for development"):
        call_command("up", stdout=StringIO())
    assert not Tenant.objects.exists()
    assert read_profile() == {}

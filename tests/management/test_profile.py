"""The profile that `make run` writes, and how client commands use it."""

from __future__ import annotations

import os
import stat
import subprocess
from io import StringIO
from pathlib import Path
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from eventservice.management.commands.calls import Command as Calls
from eventservice.management.profile import (
    find_target_port,
    format_exports,
    format_path,
    get_profile_path,
    read_profile,
    write_profile,
)
from eventservice.management.terminal import Access, find_access
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.keys import create_key

URL, TENANT, KEY = "http://127.0.0.1:8137", "01900000-0000-7000-8000-000000000000", "es_dev_a_b"
PROFILE = {"EVENTSERVICE_URL": URL, "EVENTSERVICE_TENANT": TENANT, "EVENTSERVICE_KEY": KEY}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "con fig"))
    for name in PROFILE:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def choose(**options: str) -> Access:
    return find_access({"url": None, "tenant": None, "key": None, **options})


def test_only_its_owner_can_read_it(folder: Path) -> None:
    old = os.umask(0)
    try:
        path = write_profile(PROFILE)
    finally:
        os.umask(old)
    assert path == folder / "con fig" / "eventservice" / "profile"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_a_shell_and_the_commands_read_the_same(folder: Path) -> None:
    variables = {**PROFILE, "DB_PATH": "/tmp/some 'where'/a b.db"}
    path = write_profile(variables)
    assert read_profile() == variables
    script = f'. {format_path(path)}; printf "%s|" "$EVENTSERVICE_URL" "$EVENTSERVICE_KEY" "$DB_PATH"'
    printed = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed == f"{URL}|{KEY}|{variables['DB_PATH']}|"


def test_a_variable_without_a_value_is_not_exported() -> None:
    assert format_exports({"EVENTSERVICE_KEY": "", "EVENTSERVICE_URL": URL}) == [
        f"export EVENTSERVICE_URL={URL}"
    ]


def test_a_relative_xdg_config_home_is_ignored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "config")
    monkeypatch.setenv("HOME", str(folder))
    assert get_profile_path() == folder / ".config" / "eventservice" / "profile"
    assert format_path(get_profile_path()) == "~/.config/eventservice/profile"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"export EVENTSERVICE_KEY='", b"just words\n=\n"])
def test_a_profile_that_makes_no_sense_is_ignored(content: bytes) -> None:
    write_profile(PROFILE).write_bytes(content)
    assert not read_profile().get("EVENTSERVICE_KEY")


TENANT_ID = UUID(TENANT)


@pytest.mark.parametrize(
    ("profile", "tenant_id", "expected"),
    [
        ({**PROFILE, "TARGET_PORT": "9137"}, TENANT_ID, 9137),
        ({**PROFILE, "TARGET_PORT": "9137"}, UUID(int=1), 9000),  # of another service
        ({**PROFILE, "TARGET_PORT": "9137"}, None, 9000),
        ({**PROFILE, "TARGET_PORT": "x"}, TENANT_ID, 9000),
        (PROFILE, TENANT_ID, 9000),
    ],
)
@override_settings(TARGET_PORT=9000)
def test_sample_calls_go_to_the_mock_target_of_the_running_service(
    monkeypatch: pytest.MonkeyPatch, profile: dict[str, str], tenant_id: UUID | None, expected: int
) -> None:
    monkeypatch.delenv("TARGET_PORT", raising=False)
    write_profile(profile)
    assert find_target_port(tenant_id) == expected


@override_settings(TARGET_PORT=9200)
def test_the_port_of_the_environment_has_precedence_over_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARGET_PORT", "9200")
    write_profile({**PROFILE, "TARGET_PORT": "9137"})
    assert find_target_port(TENANT_ID) == 9200


def test_client_commands_use_it() -> None:
    write_profile(PROFILE)
    assert choose() == Access(URL, TENANT, KEY, "the profile")


def test_options_and_the_environment_take_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    write_profile(PROFILE)
    monkeypatch.setenv("EVENTSERVICE_KEY", "es_dev_c_d")
    assert choose() == Access(URL, TENANT, "es_dev_c_d", "EVENTSERVICE_KEY")
    monkeypatch.setenv("EVENTSERVICE_KEY", "")
    assert choose(tenant="acme", url=f"{URL}/") == Access(f"{URL}/", "acme", KEY, "the profile")


def test_its_key_is_not_sent_to_another_service(monkeypatch: pytest.MonkeyPatch) -> None:
    write_profile(PROFILE)
    with pytest.raises(CommandError, match="Use --tenant, set EVENTSERVICE_TENANT"):
        choose(url="https://calls.example")
    monkeypatch.setenv("EVENTSERVICE_URL", "https://calls.example")
    with pytest.raises(CommandError, match="Use --key, set EVENTSERVICE_KEY"):
        choose(tenant="acme")


def test_without_a_profile_the_url_is_that_of_make_run(settings: object) -> None:
    settings.PORT = 8137  # type: ignore[attr-defined]
    assert choose(tenant="acme", key=KEY).url == URL


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_operator", [False, True])
def test_a_tenant_is_found_by_name(served: str, is_operator: bool) -> None:
    tenant = create_tenant("acme")
    create_tenant("another")
    _, key = create_key(None if is_operator else tenant.tenant_id, ["read"])
    out = StringIO()
    call_command("calls", url=served, tenant="acme", key=key, stdout=out)
    assert "No calls match" in out.getvalue()
    with pytest.raises(CommandError, match="There is no tenant 'nobody' for this key") as refused:
        call_command("calls", url=served, tenant="nobody", key=key)
    assert refused.value.returncode == 1


@pytest.mark.django_db(transaction=True)
def test_a_refused_key_is_reported_with_where_it_is_from(
    served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell that has loaded an older profile hides the current one."""
    write_profile({**PROFILE, "EVENTSERVICE_URL": served})
    with pytest.raises(CommandError, match="The key is from the profile"):
        call_command("calls")
    monkeypatch.setenv("EVENTSERVICE_KEY", KEY)
    with pytest.raises(CommandError, match="The key is from EVENTSERVICE_KEY"):
        call_command("calls")
    with pytest.raises(CommandError, match="The key is from --key"):
        call_command("calls", key=KEY)


def test_help_mentions_the_profile() -> None:
    assert "the profile" in Calls().create_parser("manage.py", "calls").format_help()

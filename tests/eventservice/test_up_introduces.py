"""`make run` tells how to use what it has started, in lines that a shell takes as they are."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from eventservice.devtools.supervisor import Supervisor
from eventservice.management.commands import up
from eventservice.tenants.keys import find_key
from eventservice.tenants.models import Tenant

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervisor, "run", lambda self: 0)
    monkeypatch.setattr(up, "refuse_taken", lambda wanted: None)


def start(**options: Any) -> str:
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("up", port=8137, target_port=9137, stdout=out, **options)
    return out.getvalue()


def exported(told: str) -> dict[str, str]:
    return dict(re.findall(r"^export (\w+)=(\S*)", told, re.MULTILINE))


def test_the_first_start_exports_all_that_a_client_needs() -> None:
    variables = exported(start())
    assert variables["EVENTSERVICE_URL"] == "http://127.0.0.1:8137"
    key = find_key(variables["EVENTSERVICE_KEY"])
    assert key is not None
    assert str(key.tenant_id) == variables["EVENTSERVICE_TENANT"]


def test_later_starts_tell_how_to_get_another_key_and_password() -> None:
    start()
    told = start()
    assert "manage.py apikey create --tenant demo" in told
    assert "manage.py changepassword operator" in told
    assert exported(told)["EVENTSERVICE_KEY"] == ""


def test_the_commands_find_the_same_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PATH", "/tmp/some where.db")
    assert "export DB_PATH='/tmp/some where.db'" in start()


def test_a_first_start_that_fails_begins_anew_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(up, "_create_operator", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            call_command("up", stdout=StringIO())
    assert not Tenant.objects.filter(name=up.DEMO).exists()
    assert exported(start())["EVENTSERVICE_KEY"]

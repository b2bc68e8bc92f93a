"""`make run` prints how to use the system, in lines that can be pasted into a shell."""

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
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervisor, "run", lambda self: 0)
    monkeypatch.setattr(up, "require_free_ports", lambda ports: None)


def start(**options: Any) -> str:
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("up", port=8137, target_port=9137, stdout=out, **options)
    return out.getvalue()


def read_exports(output: str) -> dict[str, str]:
    return dict(re.findall(r"^export (\w+)=(\S*)", output, re.MULTILINE))


def test_the_first_start_exports_everything_that_a_client_needs() -> None:
    variables = read_exports(start())
    assert variables["EVENTSERVICE_URL"] == "http://127.0.0.1:8137"
    key = find_key(variables["EVENTSERVICE_KEY"])
    assert key is not None
    assert str(key.tenant_id) == variables["EVENTSERVICE_TENANT"]


def test_later_starts_print_how_to_get_another_key_and_password() -> None:
    start()
    output = start()
    assert "manage.py apikey create --tenant demo" in output
    assert "manage.py changepassword operator" in output
    assert read_exports(output)["EVENTSERVICE_KEY"] == ""


def test_the_exports_include_the_path_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PATH", "/tmp/some where.db")
    assert "export DB_PATH='/tmp/some where.db'" in start()


def test_a_failed_first_start_is_repeated_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(up, "_create_operator", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            call_command("up", stdout=StringIO())
    assert not Tenant.objects.filter(name=up.DEMO).exists()
    assert read_exports(start())["EVENTSERVICE_KEY"]

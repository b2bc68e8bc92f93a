"""The operators' commands, against a running server."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from eventservice.api.auth import forget_keys
from eventservice.tenants.keys import create_key
from eventservice.tenants.models import ApiKey
from eventservice.tenants.public import create_tenant, forget_profiles

pytestmark = pytest.mark.django_db(transaction=True)

Run = Callable[..., str]


def run_command(*args: str, **options: Any) -> str:
    out = StringIO()
    call_command(*args, stdout=out, **options)
    return out.getvalue()


@pytest.fixture
def run(served: str) -> Run:
    forget_keys()
    forget_profiles()
    tenant = create_tenant("acme")
    _, key = create_key(tenant.tenant_id, list(ApiKey.Scope))
    at = {"url": served, "tenant": str(tenant.tenant_id), "key": key}
    return lambda *args, **options: run_command(*args, **{**at, **options})


def submit(run: Run, *more: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(run("submit", "greet", "post", "http://target.test/", "--json", *more))
    return made


def test_a_call_is_submitted_shown_listed_canceled_and_replayed(run: Run) -> None:
    call = submit(run, "--body", '{"n": 1}', "-H", "X-A: b", "--in", "1h", "--tag", "x", "--attempts", "3")
    assert call["requestSpec"] == {
        "method": "POST", "url": "http://target.test/", "headers": {"X-A": "b"}, "body": {"n": 1},
    }  # fmt: skip
    one = call["serviceCallId"]
    assert "greet" in run("calls")
    assert "ServiceCallSubmitted" in run("call", one)
    assert json.loads(run("calls", "--json", "--tag", "x"))[0]["serviceCallId"] == one
    assert json.loads(run("calls", "--json", "--tag", "other")) == []
    assert "No call" in run("calls", "--tag", "other")
    assert "Canceled" in run("cancel", one)
    assert json.loads(run("replay", one, "--json"))[0]["replayOf"] == one
    shown = json.loads(run("call", one, "--json"))
    assert [event["seq"] for event in shown["events"]] == [1, 2, 3]


def test_what_the_service_refuses_ends_with_1(run: Run) -> None:
    with pytest.raises(CommandError, match="/requestSpec/url") as refused:
        run("submit", "greet", "GET", "nonsense")
    assert refused.value.returncode == 1


def test_a_service_that_is_not_there_ends_with_3(run: Run) -> None:
    with pytest.raises(CommandError) as broken:
        run("cancel", "01900000-0000-7000-8000-000000000000", url="http://127.0.0.1:9")
    assert broken.value.returncode == 3


@pytest.mark.parametrize("missing", ["tenant", "key"])
def test_a_command_without_a_key_or_a_tenant_ends_with_2(run: Run, missing: str) -> None:
    with pytest.raises(CommandError, match=missing) as wrong:
        run("calls", **{missing: ""})
    assert wrong.value.returncode == 2


def test_waiting_for_a_call_that_does_not_succeed_ends_with_1(run: Run) -> None:
    with pytest.raises(SystemExit) as ended:
        run("submit", "greet", "GET", "http://target.test/", "--in", "1h", "--wait", "0.1")
    assert ended.value.code == 1


def test_tenants_and_keys_are_made_on_the_database_itself(run: Run) -> None:
    assert "acme" in run_command("tenant", "list")
    assert json.loads(run_command("tenant", "create", "fresh", "--json"))[0]["namespaces"] == ["default (16)"]
    assert "blue (4)" in run_command("tenant", "namespace", "fresh", "blue", "--shards", "4")
    with pytest.raises(CommandError, match="exists"):
        run_command("tenant", "create", "fresh")
    made = json.loads(run_command("apikey", "create", "--tenant", "fresh", "--scope", "read", "--json"))
    assert made["key"].startswith("es_dev_")
    rotated = run_command("apikey", "rotate", made["keyId"]).strip()
    assert rotated.startswith("es_dev_")
    listed = run_command("apikey", "list", "--tenant", "fresh")
    assert made["keyId"] in listed
    assert rotated.rsplit("_", 1)[1] not in listed
    assert "Revoked" in run_command("apikey", "revoke", made["keyId"])
    with pytest.raises(CommandError):
        run_command("apikey", "revoke", made["keyId"])

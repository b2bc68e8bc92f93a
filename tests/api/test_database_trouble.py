"""Nobody is told that nothing has been changed who cannot know it, and nobody who reads waits for who writes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Event
from typing import Any

import pytest
from django.db import OperationalError, transaction

from eventservice.kernel.ids import new_id
from eventservice.kernel.ttl_cache import clear_caches
from eventservice.tenants.models import ApiKey
from orchestration import lifecycle
from orchestration.models import ServiceCall
from tests.api.conftest import Api, submission
from tests.database_errors import lock_timeout


def busy(*_: Any) -> Any:
    raise lock_timeout()


@pytest.mark.django_db
def test_who_was_kept_waiting_may_try_again(acme: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "submit", busy)
    answer = acme.post("/service-calls", submission())
    assert (answer.status_code, answer.json()["code"], answer["Retry-After"]) == (503, "database_busy", "1")
    assert "Nothing was changed" in answer.json()["detail"]


@pytest.mark.django_db
def test_a_call_that_was_stored_is_not_said_to_be_none(acme: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = lifecycle.submit

    def lost(commands: Any) -> Any:
        stored(commands)
        raise OperationalError("consuming input failed: server closed the connection unexpectedly")

    monkeypatch.setattr(lifecycle, "submit", lost)
    answer = acme.post("/service-calls", submission())
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
    assert "Nothing was changed" not in answer.json()["detail"]
    assert "idempotency key" in answer.json()["detail"]
    assert "Retry-After" not in answer
    assert ServiceCall.objects.for_tenant(acme.tenant.tenant_id).count() == 1


def last_used(api: Api) -> Any:
    return ApiKey.objects.for_tenant(api.tenant.tenant_id).get().last_used_at


def the_call(api: Api) -> Any:
    return ServiceCall.objects.for_tenant(api.tenant.tenant_id).get()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("method", "action", "body", "done"),
    [
        ("POST", "/cancel", None, {"status": "Canceled"}),
        ("PATCH", "", {"name": "other"}, {"name": "other"}),
    ],
)
def test_what_was_done_is_not_said_to_be_undone_when_it_cannot_be_shown(
    acme: Api, monkeypatch: pytest.MonkeyPatch, method: str, action: str, body: Any, done: dict[str, str]
) -> None:
    call = acme.submit()["serviceCallId"]
    monkeypatch.setattr("eventservice.api.calls.read_call", busy)
    answer = acme(method, f"/service-calls/{call}{action}", body)
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
    assert {name: getattr(the_call(acme), name) for name in done} == done


@pytest.mark.django_db
def test_nor_is_a_timer_that_was_set(acme: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    timer = {"executeAt": "2030-01-01T00:00:00Z", "callbackUrl": "http://target.test/"}
    monkeypatch.setattr("eventservice.api.timers.get_timer_call", busy)
    answers = [
        acme.post("/timers/create", {"id": "t", **timer}),
        acme.post("/timers/update", {"timerId": "t", "callbackTimeoutSeconds": 7}),
    ]
    assert [answer.json()["code"] for answer in answers] == ["outcome_unknown"] * 2
    assert the_call(acme).timeout_seconds == 7


@pytest.mark.django_db
@pytest.mark.parametrize("rotates", [False, True])
def test_there_is_no_key_that_nobody_was_shown(
    acme: Api, monkeypatch: pytest.MonkeyPatch, rotates: bool
) -> None:
    monkeypatch.setattr(ApiKey, "refresh_from_db", busy)
    path = f"/api-keys/{acme.key.split('_')[2]}/rotate" if rotates else "/api-keys"
    answer = acme.post(path, {} if rotates else {"scopes": ["read"]})
    assert (answer.status_code, answer.json()["code"]) == (503, "database_busy")
    assert ApiKey.objects.for_tenant(acme.tenant.tenant_id).get().successor_id is None


@pytest.mark.django_db
def test_metrics_say_that_the_database_is_away(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventservice.api.metrics.find_principal", busy)
    monkeypatch.setattr("eventservice.api.metrics.settings.METRICS_OPEN", False)
    answer = client.get("/metrics", HTTP_AUTHORIZATION="Bearer es_live_x")
    assert (answer.status_code, answer.json()["code"]) == (503, "database_busy")


@pytest.mark.django_db(transaction=True)
def test_a_key_opens_while_its_use_cannot_be_noted(acme: Api, elsewhere: Callable[..., Future[Any]]) -> None:
    held, done = Event(), Event()

    def hold() -> None:
        """SQLite's one lock for writing, or elsewhere the key's row."""
        with transaction.atomic():
            ApiKey.objects.for_tenant(acme.tenant.tenant_id).update(name="held")
            held.set()
            done.wait(60)

    holding = elsewhere(hold)
    assert held.wait(30)
    try:
        assert acme.get(f"/service-calls?correlationId={new_id()}").status_code == 200
    finally:
        done.set()
        holding.result(30)
    assert last_used(acme) is None
    clear_caches()
    acme.get("/service-calls")
    assert last_used(acme) is not None

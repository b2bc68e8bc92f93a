"""Database trouble: a response says that nothing was changed only if that is known, and readers never wait for writers."""

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
from tests.api.conftest import Api, build_submission
from tests.database_errors import lock_timeout


def fail_on_lock(*_: Any) -> Any:
    raise lock_timeout()


@pytest.mark.django_db
def test_a_busy_database_allows_another_try(acme: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "submit", fail_on_lock)
    answer = acme.post("/service-calls", build_submission())
    assert (answer.status_code, answer.json()["code"], answer["Retry-After"]) == (503, "database_busy", "1")
    assert "Nothing was changed" in answer.json()["detail"]


@pytest.mark.django_db
def test_a_lost_connection_after_the_commit_is_an_unknown_outcome(
    acme: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = lifecycle.submit

    def submit_and_fail(commands: Any) -> Any:
        submit(commands)
        raise OperationalError("consuming input failed: server closed the connection unexpectedly")

    monkeypatch.setattr(lifecycle, "submit", submit_and_fail)
    answer = acme.post("/service-calls", build_submission())
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
    assert "Nothing was changed" not in answer.json()["detail"]
    assert "idempotency key" in answer.json()["detail"]
    assert "Retry-After" not in answer
    assert ServiceCall.objects.for_tenant(acme.tenant.tenant_id).count() == 1


def get_last_used(api: Api) -> Any:
    return ApiKey.objects.for_tenant(api.tenant.tenant_id).get().last_used_at


def get_call(api: Api) -> Any:
    return ServiceCall.objects.for_tenant(api.tenant.tenant_id).get()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("method", "action", "body", "done"),
    [
        ("POST", "/cancel", None, {"status": "Canceled"}),
        ("PATCH", "", {"name": "other"}, {"name": "other"}),
    ],
)
def test_a_failed_read_after_the_commit_is_an_unknown_outcome(
    acme: Api, monkeypatch: pytest.MonkeyPatch, method: str, action: str, body: Any, done: dict[str, str]
) -> None:
    call = acme.submit()["serviceCallId"]
    monkeypatch.setattr("eventservice.api.calls.read_call", fail_on_lock)
    answer = acme(method, f"/service-calls/{call}{action}", body)
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
    assert {name: getattr(get_call(acme), name) for name in done} == done


@pytest.mark.django_db
def test_a_timer_that_cannot_be_shown_was_still_set(acme: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    timer = {"executeAt": "2030-01-01T00:00:00Z", "callbackUrl": "http://target.test/"}
    monkeypatch.setattr("orchestration.durable_timers.get_timer_call", fail_on_lock)
    answers = [
        acme.post("/timers/create", {"id": "t", **timer}),
        acme.post("/timers/update", {"timerId": "t", "callbackTimeoutSeconds": 7}),
    ]
    assert [answer.json()["code"] for answer in answers] == ["outcome_unknown"] * 2
    assert get_call(acme).timeout_seconds == 7


@pytest.mark.django_db
@pytest.mark.parametrize("rotates", [False, True])
def test_a_key_that_cannot_be_shown_is_not_created(
    acme: Api, monkeypatch: pytest.MonkeyPatch, rotates: bool
) -> None:
    monkeypatch.setattr(ApiKey, "refresh_from_db", fail_on_lock)
    path = f"/api-keys/{acme.key.split('_')[2]}/rotate" if rotates else "/api-keys"
    answer = acme.post(path, {} if rotates else {"scopes": ["read"]})
    assert (answer.status_code, answer.json()["code"]) == (503, "database_busy")
    assert ApiKey.objects.for_tenant(acme.tenant.tenant_id).get().successor_id is None


@pytest.mark.django_db
def test_metrics_report_that_the_database_is_unavailable(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventservice.api.metrics.find_principal", fail_on_lock)
    monkeypatch.setattr("eventservice.api.metrics.settings.METRICS_OPEN", False)
    answer = client.get("/metrics", HTTP_AUTHORIZATION="Bearer es_live_x")
    assert (answer.status_code, answer.json()["code"]) == (503, "database_busy")


@pytest.mark.django_db(transaction=True)
def test_a_key_works_while_its_use_cannot_be_recorded(
    acme: Api, elsewhere: Callable[..., Future[Any]]
) -> None:
    held, done = Event(), Event()

    def hold() -> None:
        """Take SQLite's only write lock, or elsewhere the lock of the key's row."""
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
    assert get_last_used(acme) is None
    clear_caches()
    acme.get("/service-calls")
    assert get_last_used(acme) is not None

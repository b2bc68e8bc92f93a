"""Nobody is told that nothing has been changed who cannot know it, and nobody who reads waits for who writes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Event
from typing import Any

import pytest
from django.db import OperationalError, transaction

from eventservice.api.auth import forget_keys
from eventservice.kernel.ids import new_id
from eventservice.tenants.models import ApiKey
from orchestration import lifecycle
from orchestration.models import ServiceCall
from tests.api.conftest import Api, submission


def busy(*_: Any) -> Any:
    raise OperationalError(1205, "Lock wait timeout exceeded; try restarting transaction")


@pytest.mark.django_db
def test_who_was_kept_waiting_may_try_again(acme: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "submit", busy)
    answer = acme.post("/service-calls", submission())
    assert (answer.status_code, answer.json()["code"], answer["Retry-After"]) == (503, "database_busy", "1")
    assert "Nothing has been changed" in answer.json()["detail"]


@pytest.mark.django_db
def test_a_call_that_was_stored_is_not_said_to_be_none(acme: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = lifecycle.submit

    def lost(commands: Any) -> Any:
        stored(commands)
        raise OperationalError("consuming input failed: server closed the connection unexpectedly")

    monkeypatch.setattr(lifecycle, "submit", lost)
    answer = acme.post("/service-calls", submission())
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
    assert "Nothing has been changed" not in answer.json()["detail"]
    assert "idempotency key" in answer.json()["detail"]
    assert "Retry-After" not in answer
    assert ServiceCall.objects.for_tenant(acme.tenant.tenant_id).count() == 1


def last_used(api: Api) -> Any:
    return ApiKey.objects.for_tenant(api.tenant.tenant_id).get().last_used_at


@pytest.mark.django_db
def test_what_was_done_is_not_said_to_be_undone_when_it_cannot_be_shown(
    acme: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = acme.post("/service-calls", submission(delay="1h")).json()["serviceCallId"]
    monkeypatch.setattr("orchestration.api.service_calls.show_details", busy)
    answer = acme.post(f"/service-calls/{call}/cancel")
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
    assert (
        ServiceCall.objects.for_tenant(acme.tenant.tenant_id).get(service_call_id=call).status == "Canceled"
    )


@pytest.mark.django_db
def test_metrics_say_that_the_database_is_away(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventservice.api.metrics.principal_of", busy)
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
    forget_keys()
    acme.get("/service-calls")
    assert last_used(acme) is not None

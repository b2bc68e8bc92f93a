"""A delivery that one process is sending is not sent by another, until the process is declared dead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError

from eventservice.db import errors
from eventservice.db.now import pin_time
from eventservice.kernel.ids import new_id
from outbox.models import WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook import deliverer as deliverer_module
from outbox.publishers.webhook.deliverer import WebhookDeliverer, WebhookRequest
from outbox.publishers.webhook.delivery_queue import (
    DELIVERY_LEASE,
    DeliveryCounts,
    WebhookResult,
    claim_deliveries,
    record_results,
)
from outbox.publishers.webhook.endpoints import create_endpoint
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.outbox.support import NOON, TENANT, build_dispatcher, build_event, drain, store_events, store_run

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


class RespondingTransport:
    """A transport that returns up to `max_results` results at a time, each with status 200."""

    def __init__(self, max_results: int = 100) -> None:
        self.max_results = max_results
        self.requests: list[WebhookRequest] = []

    def send(self, requests: Sequence[WebhookRequest]) -> None:
        self.requests += requests

    def collect(self, timeout: float) -> list[WebhookResult]:
        ended, self.requests = self.requests[: self.max_results], self.requests[self.max_results :]
        return [WebhookResult(request.delivery, 200) for request in ended]


@pytest.fixture
def endpoint() -> WebhookEndpoint:
    store_run(new_id(), 2)
    endpoint, _ = create_endpoint(TENANT, "http://example.test/")
    drain(build_dispatcher(WebhookPublisher()))
    return endpoint


def test_what_is_claimed_is_claimed_once(endpoint: WebhookEndpoint) -> None:
    first, _ = claim_deliveries(endpoint, 10)
    second, _ = claim_deliveries(endpoint, 10)
    assert [delivery.aggregate_seq for delivery in first] == [1]
    assert second == []


def test_what_a_dead_sender_had_claimed_is_due_when_its_lease_expires(endpoint: WebhookEndpoint) -> None:
    claim_deliveries(endpoint, 10)
    with pin_time(NOON + DELIVERY_LEASE):
        (again,) = claim_deliveries(endpoint, 10)[0]
    assert (again.aggregate_seq, again.attempts) == (1, 2)


def test_a_sender_that_was_declared_dead_records_nothing(endpoint: WebhookEndpoint) -> None:
    (slow,), _ = claim_deliveries(endpoint, 10)
    with pin_time(NOON + DELIVERY_LEASE):
        claim_deliveries(endpoint, 10)
        assert record_results(endpoint, [WebhookResult(slow, 200)]) == DeliveryCounts()

    states = WebhookDelivery.across_tenants.order_by("aggregate_seq").values_list("state", "next_attempt_at")
    assert [(state, due is None) for state, due in states] == [("Pending", False), ("Pending", True)]


def test_deliveries_that_could_not_be_sent_are_due_again(endpoint: WebhookEndpoint) -> None:
    class Broken(RespondingTransport):
        def send(self, requests: Sequence[WebhookRequest]) -> None:
            raise RuntimeError("the egress is closed")

    assert WebhookDeliverer(Broken()).deliver_once().next_wait
    with pin_time(NOON + DELIVERY_LEASE + timedelta(seconds=1)):
        assert len(claim_deliveries(endpoint, 10)[0]) == 1


def test_what_could_not_be_recorded_is_sent_again(
    endpoint: WebhookEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_locked(*_: object) -> None:
        raise OperationalError("database is locked")

    deliverer = WebhookDeliverer(RespondingTransport())
    with monkeypatch.context() as patch:
        patch.setattr(deliverer_module, "record_results", raise_locked)
        with pytest.raises(OperationalError):
            deliverer.deliver_once()
    with pin_time(NOON + DELIVERY_LEASE + timedelta(seconds=1)):
        assert deliverer.deliver_once().delivered == 1


def test_closing_records_the_results_so_far_and_waits_no_longer_than_its_grace_period(
    endpoint: WebhookEndpoint,
) -> None:
    store_events(build_event(new_id(), 1))
    drain(build_dispatcher(WebhookPublisher()))
    transport = RespondingTransport(max_results=0)
    deliverer = WebhookDeliverer(transport)
    deliverer.deliver_once()
    transport.max_results = 1
    deliverer.close(grace_seconds=0, heartbeat=lambda: None)
    states = WebhookDelivery.across_tenants.values_list("state", flat=True)
    assert sorted(states) == ["Delivered", "Pending", "Pending"]


@pytest.mark.django_db(transaction=True)
def test_closing_records_the_other_results_when_one_cannot_be_recorded(
    endpoint: WebhookEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        create_endpoint(TENANT, f"http://example.test/{number}")
    store_events(build_event(new_id(), 1))
    drain(build_dispatcher(WebhookPublisher()))
    transport, failures = RespondingTransport(max_results=0), [OperationalError("lock wait timeout")]
    deliverer = WebhookDeliverer(transport)
    deliverer.deliver_once()
    transport.max_results = 10

    def record_or_fail(*given: Any) -> Any:
        if failures:
            raise failures.pop()
        return record_results(*given)

    monkeypatch.setattr(deliverer_module, "record_results", record_or_fail)
    monkeypatch.setattr(errors, "PAUSE_SECONDS", 0.0)
    before = count_delivered()
    deliverer.close(grace_seconds=10, heartbeat=lambda: None)
    assert count_delivered() - before >= 3


def count_delivered() -> int:
    return WebhookDelivery.across_tenants.filter(state="Delivered").count()


@pytest.mark.django_db(transaction=True)
def test_concurrent_claims_share_what_is_due(elsewhere: Callable[..., Future[Any]]) -> None:
    endpoint, _ = create_endpoint(TENANT, "http://example.test/")
    for _ in range(60):
        store_run(new_id(), 1)
    drain(build_dispatcher(WebhookPublisher()))
    start = threading.Barrier(4)

    def claim_all() -> list[Any]:
        start.wait(5)
        claimed: list[Any] = []
        for _ in range(10):
            claimed += [delivery.delivery_id for delivery in claim_deliveries(endpoint, 7)[0]]
        return claimed

    claims = [key for thread in [elsewhere(claim_all) for _ in range(4)] for key in thread.result(20)]
    assert len(claims) == len(set(claims)) == 60

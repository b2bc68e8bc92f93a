"""What one process is sending, no other sends; what a dead one was sending is sent again."""

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
    WebhookResult,
    claim_deliveries,
    record_results,
)
from outbox.publishers.webhook.endpoints import create_endpoint
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.outbox.support import NOON, TENANT, build_dispatcher, build_event, drain, store_events, store_run

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


class Answering:
    """Answers so many at a time with 200."""

    def __init__(self, answers: int = 100) -> None:
        self.answers = answers
        self.asked: list[WebhookRequest] = []

    def send(self, requests: Sequence[WebhookRequest]) -> None:
        self.asked += requests

    def collect(self, timeout: float) -> list[WebhookResult]:
        ended, self.asked = self.asked[: self.answers], self.asked[self.answers :]
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
    assert [taken.aggregate_seq for taken in first] == [1]
    assert second == []


def test_what_a_dead_sender_had_claimed_is_due_when_its_lease_ends(endpoint: WebhookEndpoint) -> None:
    claim_deliveries(endpoint, 10)
    with pin_time(NOON + DELIVERY_LEASE):
        (again,) = claim_deliveries(endpoint, 10)[0]
    assert (again.aggregate_seq, again.attempts) == (1, 2)


def test_a_sender_that_was_given_up_for_dead_records_nothing(endpoint: WebhookEndpoint) -> None:
    (slow,), _ = claim_deliveries(endpoint, 10)
    with pin_time(NOON + DELIVERY_LEASE):
        claim_deliveries(endpoint, 10)
        assert record_results(endpoint, [WebhookResult(slow, 200)]) == (0, 0, 0)

    states = WebhookDelivery.across_tenants.order_by("aggregate_seq").values_list("state", "next_attempt_at")
    assert [(state, due is None) for state, due in states] == [("Pending", False), ("Pending", True)]


def test_when_sending_breaks_down_the_deliveries_come_back(endpoint: WebhookEndpoint) -> None:
    class Broken(Answering):
        def send(self, requests: Sequence[WebhookRequest]) -> None:
            raise RuntimeError("the egress is closed")

    assert WebhookDeliverer(Broken()).deliver_once().next_wait
    with pin_time(NOON + DELIVERY_LEASE + timedelta(seconds=1)):
        assert len(claim_deliveries(endpoint, 10)[0]) == 1


def test_what_could_not_be_recorded_is_sent_again(
    endpoint: WebhookEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: object) -> None:
        raise OperationalError("database is locked")

    deliverer = WebhookDeliverer(Answering())
    with monkeypatch.context() as trouble:
        trouble.setattr(deliverer_module, "record_results", locked)
        with pytest.raises(OperationalError):
            deliverer.deliver_once()
    with pin_time(NOON + DELIVERY_LEASE + timedelta(seconds=1)):
        assert deliverer.deliver_once().delivered == 1


def test_a_stop_records_what_has_been_answered_and_waits_no_longer_than_it_may(
    endpoint: WebhookEndpoint,
) -> None:
    store_events(build_event(new_id(), 1))
    drain(build_dispatcher(WebhookPublisher()))
    answering = Answering(answers=0)
    deliverer = WebhookDeliverer(answering)
    deliverer.deliver_once()
    answering.answers = 1
    deliverer.close(grace_seconds=0, heartbeat=lambda: None)
    states = WebhookDelivery.across_tenants.values_list("state", flat=True)
    assert sorted(states) == ["Delivered", "Pending", "Pending"]


@pytest.mark.django_db(transaction=True)
def test_a_stop_records_the_others_when_one_cannot_be_recorded(
    endpoint: WebhookEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        create_endpoint(TENANT, f"http://example.test/{number}")
    store_events(build_event(new_id(), 1))
    drain(build_dispatcher(WebhookPublisher()))
    answering, troubles = Answering(answers=0), [OperationalError("lock wait timeout")]
    deliverer = WebhookDeliverer(answering)
    deliverer.deliver_once()
    answering.answers = 10

    def record_in_trouble(*given: Any) -> Any:
        if troubles:
            raise troubles.pop()
        return record_results(*given)

    monkeypatch.setattr(deliverer_module, "record_results", record_in_trouble)
    monkeypatch.setattr(errors, "PAUSE_SECONDS", 0.0)
    before = delivered()
    deliverer.close(grace_seconds=10, heartbeat=lambda: None)
    assert delivered() - before >= 3


def delivered() -> int:
    return WebhookDelivery.across_tenants.filter(state="Delivered").count()


@pytest.mark.django_db(transaction=True)
def test_many_that_claim_at_once_share_what_is_due(elsewhere: Callable[..., Future[Any]]) -> None:
    endpoint, _ = create_endpoint(TENANT, "http://example.test/")
    for _ in range(60):
        store_run(new_id(), 1)
    drain(build_dispatcher(WebhookPublisher()))
    start = threading.Barrier(4)

    def claim_all() -> list[Any]:
        start.wait(5)
        claimed: list[Any] = []
        for _ in range(10):
            claimed += [taken.delivery_id for taken in claim_deliveries(endpoint, 7)[0]]
        return claimed

    claims = [key for thread in [elsewhere(claim_all) for _ in range(4)] for key in thread.result(20)]
    assert len(claims) == len(set(claims)) == 60

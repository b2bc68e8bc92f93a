"""What one process is sending, no other sends; what a dead one was sending is sent again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

from eventservice.kernel.ids import new_id
from eventservice.kernel.now import pinned_time
from outbox.models import WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook import WebhookPublisher
from outbox.webhooks.delivery import LEASE, WebhookDeliverer, WebhookRequest, WebhookResult, claim, record
from outbox.webhooks.endpoints import add_endpoint
from tests.outbox.support import NOON, TENANT, append_run, dispatcher, drain

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


@pytest.fixture
def endpoint() -> WebhookEndpoint:
    append_run(new_id(), 2)
    endpoint, _ = add_endpoint(TENANT, "http://example.test/")
    drain(dispatcher(WebhookPublisher()))
    return endpoint


def _ok(key: object) -> WebhookResult:
    return WebhookResult(key, 200)


def test_what_is_claimed_is_claimed_once(endpoint: WebhookEndpoint) -> None:
    first, _ = claim(endpoint, 10)
    second, _ = claim(endpoint, 10)
    assert [delivery.aggregate_seq for delivery in first] == [1]
    assert second == []


def test_what_a_dead_sender_had_claimed_is_due_when_its_lease_ends(endpoint: WebhookEndpoint) -> None:
    claim(endpoint, 10)
    with pinned_time(NOON + LEASE):
        (again,) = claim(endpoint, 10)[0]
    assert (again.aggregate_seq, again.attempts) == (1, 2)


def test_a_sender_that_was_given_up_for_dead_records_nothing(endpoint: WebhookEndpoint) -> None:
    (slow,), _ = claim(endpoint, 10)
    with pinned_time(NOON + LEASE):
        claim(endpoint, 10)
        assert record(endpoint, {slow.delivery_id: slow}, [_ok(slow.delivery_id)]) == (0, 0, 0)

    states = (
        WebhookDelivery.objects.across_tenants()
        .order_by("aggregate_seq")
        .values_list("state", "next_attempt_at")
    )
    assert [(state, due is None) for state, due in states] == [("Pending", False), ("Pending", True)]


def test_when_sending_breaks_down_the_deliveries_come_back(endpoint: WebhookEndpoint) -> None:
    def breaks(requests: Sequence[WebhookRequest]) -> Sequence[WebhookResult]:
        raise RuntimeError("the egress is closed")

    deliverer = WebhookDeliverer(breaks)
    while deliverer.deliver_once().in_flight:
        pass
    deliverer.close()

    with pinned_time(NOON + LEASE + timedelta(seconds=1)):
        assert len(claim(endpoint, 10)[0]) == 1


@pytest.mark.django_db(transaction=True)
def test_many_that_claim_at_once_share_what_is_due(elsewhere: Callable[..., Future[Any]]) -> None:
    endpoint, _ = add_endpoint(TENANT, "http://example.test/")
    for _ in range(60):
        append_run(new_id(), 1)
    drain(dispatcher(WebhookPublisher()))
    start = threading.Barrier(4)

    def claim_all() -> list[Any]:
        start.wait(5)
        claimed: list[Any] = []
        for _ in range(10):
            claimed += [delivery.delivery_id for delivery in claim(endpoint, 7)[0]]
        return claimed

    claims = [key for thread in [elsewhere(claim_all) for _ in range(4)] for key in thread.result(20)]
    assert len(claims) == len(set(claims)) == 60

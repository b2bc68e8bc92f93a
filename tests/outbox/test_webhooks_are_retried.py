"""A delivery that an endpoint does not accept is sent again, at growing intervals, until it is given up."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from eventservice.db.now import pin_time
from eventservice.kernel.ids import new_id
from eventservice.runtime.dispatcher import EgressTransport
from outbox.models import DeliveryState, OutboxEvent, WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook import deliverer as deliverer_module
from outbox.publishers.webhook.deliverer import DeliveryResult, WebhookDeliverer
from outbox.publishers.webhook.delivery_queue import (
    GONE_REASON,
    IDLE_SECONDS,
    MAX_ATTEMPTS,
    give_up_gone_endpoint,
)
from outbox.publishers.webhook.endpoints import update_endpoint
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.outbox.conftest import Deliver, Subscribe
from tests.outbox.receiver import Receiver
from tests.outbox.support import NOON, build_dispatcher, drain, store_run

pytestmark = pytest.mark.django_db


def _publish(count: int = 1) -> None:
    store_run(new_id(), count)
    drain(build_dispatcher(WebhookPublisher()))


def _deliver_after(hours: int, deliver: Deliver) -> DeliveryResult:
    with pin_time(NOON + timedelta(hours=hours)):
        return deliver()


def _get_delivery(sequence: int = 1) -> WebhookDelivery:
    found: WebhookDelivery = WebhookDelivery.across_tenants.get(aggregate_seq=sequence)
    return found


def test_it_is_sent_again_after_a_wait(
    subscribe: Subscribe, receiver: Receiver, deliver: Deliver, at_noon: datetime
) -> None:
    subscribe()
    receiver.respond = lambda path, event: 503
    _publish()

    assert deliver().retried == 1
    waiting = _get_delivery()
    assert (waiting.attempts, waiting.state, waiting.last_error) == (1, "Pending", "HTTP 503")
    assert waiting.next_attempt_at is not None
    assert at_noon <= waiting.next_attempt_at <= at_noon + timedelta(seconds=5)

    receiver.respond = lambda path, event: 200
    assert _deliver_after(1, deliver).delivered == 1
    assert _get_delivery().state == DeliveryState.DELIVERED


@pytest.mark.usefixtures("at_noon")
def test_an_endpoint_that_cannot_be_reached_is_retried_too(subscribe: Subscribe, deliver: Deliver) -> None:
    subscribe()
    WebhookEndpoint.across_tenants.update(url="http://127.0.0.1:1/")
    _publish()
    assert deliver().retried == 1
    assert "refused" in _get_delivery().last_error


@pytest.mark.usefixtures("at_noon")
def test_it_is_given_up_after_the_last_attempt_and_the_next_event_is_sent(
    subscribe: Subscribe, receiver: Receiver, deliver: Deliver
) -> None:
    subscribe()
    receiver.respond = lambda path, event: 500 if event["sequence"].endswith("1") else 204
    _publish(2)
    results = [_deliver_after(6 * attempt, deliver) for attempt in range(MAX_ATTEMPTS)]

    assert [result.retried for result in results] == [1] * (MAX_ATTEMPTS - 1) + [0]
    assert results[-1].exhausted == 1
    assert results[-1].delivered == 1
    assert _get_delivery(1).state == DeliveryState.EXHAUSTED
    assert receiver.sequences("/hook") == [2]


@pytest.mark.usefixtures("at_noon")
def test_an_event_waits_for_the_one_before_it(
    subscribe: Subscribe, receiver: Receiver, deliver: Deliver
) -> None:
    subscribe()
    receiver.respond = lambda path, event: 500 if event["sequence"].endswith("1") else 204
    _publish(3)
    deliver()
    assert receiver.accepted == []

    receiver.respond = lambda path, event: 204
    _deliver_after(1, deliver)
    assert receiver.sequences("/hook") == [1, 2, 3]


@pytest.mark.usefixtures("at_noon")
def test_other_aggregates_of_the_endpoint_do_not_wait(
    subscribe: Subscribe, receiver: Receiver, deliver: Deliver
) -> None:
    subscribe()
    failing = new_id()
    receiver.respond = lambda path, event: 500 if event["subject"] == str(failing) else 204
    store_run(failing, 2)
    _publish(2)

    assert deliver().delivered == 2


def test_410_disables_the_endpoint_and_gives_up_what_waits_for_it(
    subscribe: Subscribe, receiver: Receiver, deliver: Deliver, caplog: pytest.LogCaptureFixture
) -> None:
    subscribe("/hook?token=hush")
    receiver.respond = lambda path, event: 410
    _publish(3)
    done = deliver()
    assert (done.retried, done.exhausted) == (0, 3)
    (line,) = [text for record in caplog.records if "endpoint_disabled" in (text := record.getMessage())]
    assert "410 Gone" in line
    assert "127.0.0.1:" in line
    assert "hush" not in line
    endpoint = WebhookEndpoint.across_tenants.get()
    assert (endpoint.active, endpoint.disabled_reason) == (False, "the endpoint answered 410 Gone")
    assert set(WebhookDelivery.across_tenants.values_list("state", flat=True)) == {"Exhausted"}

    _publish()
    assert len(receiver.headers) == 1
    assert WebhookDelivery.across_tenants.count() == 3


def test_a_long_queue_of_a_gone_endpoint_is_given_up_one_batch_per_pass(
    subscribe: Subscribe, receiver: Receiver, transport: EgressTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe()
    receiver.respond = lambda path, event: 410
    _publish(6)
    monkeypatch.setattr(deliverer_module, "GIVE_UP_BATCH", 2)
    deliverer = WebhookDeliverer(transport, collect_seconds=60)
    done = [deliverer.deliver_once() for _ in range(4)]
    assert [(each.retried, each.exhausted, each.next_wait) for each in done] == [
        (0, 3, 0.0),
        (0, 2, 0.0),
        (0, 1, 0.0),
        (0, 0, IDLE_SECONDS),
    ]
    assert set(WebhookDelivery.across_tenants.values_list("state", flat=True)) == {"Exhausted"}


@pytest.mark.usefixtures("at_noon")
def test_a_gone_endpoint_that_is_enabled_again_is_sent_the_rest_of_its_queue(
    subscribe: Subscribe, receiver: Receiver, deliver: Deliver
) -> None:
    endpoint = subscribe()
    _publish(4)
    WebhookEndpoint.across_tenants.update(active=False, disabled_reason=GONE_REASON)
    assert give_up_gone_endpoint(2) == 2
    update_endpoint(endpoint.tenant_id, endpoint.endpoint_id, active=True)
    assert deliver().delivered == 2
    assert receiver.sequences("/hook") == [3, 4]


@pytest.mark.usefixtures("at_noon")
def test_what_waits_for_a_disabled_endpoint_goes_on_waiting(subscribe: Subscribe, deliver: Deliver) -> None:
    endpoint = subscribe()
    _publish(2)
    update_endpoint(endpoint.tenant_id, endpoint.endpoint_id, active=False)
    assert deliver().exhausted == 0
    assert {row.state for row in WebhookDelivery.across_tenants.all()} == {"Pending"}


def test_deliveries_append_no_events(subscribe: Subscribe, deliver: Deliver) -> None:
    subscribe()
    _publish(2)
    deliver()
    assert OutboxEvent.across_tenants.count() == 2


def test_a_delivery_from_before_the_clock_was_set_back_is_sent(
    subscribe: Subscribe, receiver: Receiver, deliver: Deliver, at_noon: datetime
) -> None:
    subscribe()
    with pin_time(at_noon + timedelta(days=400)):
        _publish()
    assert deliver().delivered == 1

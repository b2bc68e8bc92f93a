"""An endpoint for which nothing can be signed waits, at no attempt's cost, and holds up nobody else."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet

from eventservice.db.now import pin_time
from eventservice.kernel.ids import new_id
from eventservice.kernel.secrets import encrypt
from eventservice.kernel.signing import generate_secret
from eventservice.runtime.dispatcher import EgressTransport
from outbox.models import WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook.deliverer import POSTPONE_BATCH, DeliveryResult, WebhookDeliverer
from outbox.publishers.webhook.delivery_queue import UNSIGNED_RETRY_DELAY
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.outbox.receiver import Receiver
from tests.outbox.support import NOON, TENANT, build_dispatcher, build_event, drain, store_events, store_run

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

Subscribe = Callable[..., WebhookEndpoint]
Deliver = Callable[[], DeliveryResult]
OTHER = uuid.UUID(int=2)


def _keep(secret: str, tenant_id: uuid.UUID = TENANT) -> None:
    WebhookEndpoint.objects.for_tenant(tenant_id).update(secret=secret)


def _lose_the_key(tenant_id: uuid.UUID = TENANT) -> None:
    _keep("enc:v1:" + Fernet(Fernet.generate_key()).encrypt(b"whsec_").decode(), tenant_id)


def _publish(*tenant_ids: uuid.UUID) -> None:
    for tenant_id in tenant_ids:
        store_run(new_id(), 1, tenant_id=tenant_id)
    drain(build_dispatcher(WebhookPublisher()))


def _deliveries(tenant_id: uuid.UUID = TENANT) -> Any:
    return WebhookDelivery.objects.for_tenant(tenant_id)


def test_it_holds_up_no_other_tenant(subscribe: Subscribe, receiver: Receiver, deliver: Deliver) -> None:
    subscribe("/lost")
    subscribe("/well", OTHER)
    _lose_the_key()
    _publish(TENANT, OTHER)
    deliver()
    assert receiver.sequences("/well") == [1]


def test_the_only_place_is_soon_another_tenants(
    subscribe: Subscribe, receiver: Receiver, transport: EgressTransport
) -> None:
    for number in range(3):
        subscribe(f"/lost/{number}")
    subscribe("/well", OTHER)
    _lose_the_key()
    _publish(TENANT, OTHER)
    deliverer = WebhookDeliverer(transport, max_in_flight=1)
    while not deliverer.deliver_once().next_wait:
        pass
    assert receiver.sequences("/well") == [1]


def test_its_deliveries_wait_and_say_why_and_no_attempt_is_counted(
    subscribe: Subscribe, deliver: Deliver, at_noon: datetime
) -> None:
    subscribe()
    _lose_the_key()
    _publish(TENANT)
    done = deliver()

    assert (done.delivered, done.retried, done.exhausted) == (0, 1, 0)
    waiting = _deliveries().get()
    assert (waiting.state, waiting.attempts) == ("Pending", 0)
    assert waiting.next_attempt_at == at_noon + UNSIGNED_RETRY_DELAY
    assert "ENCRYPTION_KEYS" in waiting.last_error


def test_a_secret_that_is_no_base64_waits_too(subscribe: Subscribe, deliver: Deliver) -> None:
    subscribe()
    _keep(encrypt("whsec_abcde"))
    _publish(TENANT)
    deliver()
    assert _deliveries().get().last_error == "The endpoint's secret is not base64."


def test_they_are_sent_once_the_secret_can_be_read(
    subscribe: Subscribe, receiver: Receiver, deliver: Deliver
) -> None:
    subscribe()
    _lose_the_key()
    _publish(TENANT)
    deliver()

    receiver.secrets["/hook"] = generate_secret()
    _keep(encrypt(receiver.secrets["/hook"]))
    with pin_time(NOON + UNSIGNED_RETRY_DELAY + timedelta(seconds=1)):
        assert deliver().delivered == 1
    assert receiver.sequences("/hook") == [1]


def test_more_than_are_put_off_at_once_are_put_off_in_several_passes(
    subscribe: Subscribe, deliver: Deliver
) -> None:
    subscribe()
    _lose_the_key()
    store_events(*(build_event(new_id(), 1) for _ in range(POSTPONE_BATCH + 3)))
    drain(build_dispatcher(WebhookPublisher()))
    assert deliver().retried == POSTPONE_BATCH + 3


def test_the_log_names_the_endpoint_once(
    subscribe: Subscribe, deliver: Deliver, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = subscribe()
    _lose_the_key()
    _publish(TENANT)
    deliver()
    with pin_time(NOON + 2 * UNSIGNED_RETRY_DELAY):
        deliver()
    told = [line for record in caplog.records if "webhooks_not_signed" in (line := record.getMessage())]
    assert len(told) == 1
    assert str(endpoint.endpoint_id) in told[0]

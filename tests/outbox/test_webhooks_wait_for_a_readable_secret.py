"""Deliveries that cannot be signed wait without counting attempts, and delay no other endpoint."""

from __future__ import annotations

import uuid
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
from outbox.publishers.webhook.deliverer import POSTPONE_BATCH, WebhookDeliverer
from outbox.publishers.webhook.delivery_queue import UNSIGNED_RETRY_DELAY
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.outbox.conftest import Deliver, Subscribe
from tests.outbox.receiver import Receiver
from tests.outbox.support import (
    NOON,
    OTHER_TENANT,
    TENANT,
    build_dispatcher,
    build_event,
    drain,
    store_events,
    store_run,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


def _store_secret(secret: str, tenant_id: uuid.UUID = TENANT) -> None:
    WebhookEndpoint.objects.for_tenant(tenant_id).update(secret=secret)


def _make_secret_unreadable(tenant_id: uuid.UUID = TENANT) -> None:
    _store_secret("enc:v1:" + Fernet(Fernet.generate_key()).encrypt(b"whsec_").decode(), tenant_id)


def _publish(*tenant_ids: uuid.UUID) -> None:
    for tenant_id in tenant_ids:
        store_run(new_id(), 1, tenant_id=tenant_id)
    drain(build_dispatcher(WebhookPublisher()))


def _filter_deliveries(tenant_id: uuid.UUID = TENANT) -> Any:
    return WebhookDelivery.objects.for_tenant(tenant_id)


def test_it_holds_up_no_other_tenant(subscribe: Subscribe, receiver: Receiver, deliver: Deliver) -> None:
    subscribe("/unreadable")
    subscribe("/healthy", OTHER_TENANT)
    _make_secret_unreadable()
    _publish(TENANT, OTHER_TENANT)
    deliver()
    assert receiver.sequences("/healthy") == [1]


def test_the_only_capacity_is_soon_free_for_another_tenant(
    subscribe: Subscribe, receiver: Receiver, transport: EgressTransport
) -> None:
    for number in range(3):
        subscribe(f"/unreadable/{number}")
    subscribe("/healthy", OTHER_TENANT)
    _make_secret_unreadable()
    _publish(TENANT, OTHER_TENANT)
    deliverer = WebhookDeliverer(transport, max_in_flight=1)
    while not deliverer.deliver_once().next_wait:
        pass
    assert receiver.sequences("/healthy") == [1]


def test_its_deliveries_wait_with_the_reason_and_no_attempt_is_counted(
    subscribe: Subscribe, deliver: Deliver, at_noon: datetime
) -> None:
    subscribe()
    _make_secret_unreadable()
    _publish(TENANT)
    done = deliver()

    assert (done.delivered, done.retried, done.exhausted) == (0, 1, 0)
    waiting = _filter_deliveries().get()
    assert (waiting.state, waiting.attempts) == ("Pending", 0)
    assert waiting.next_attempt_at == at_noon + UNSIGNED_RETRY_DELAY
    assert "ENCRYPTION_KEYS" in waiting.last_error


def test_deliveries_wait_for_a_secret_that_is_not_base64(subscribe: Subscribe, deliver: Deliver) -> None:
    subscribe()
    _store_secret(encrypt("whsec_abcde"))
    _publish(TENANT)
    deliver()
    assert _filter_deliveries().get().last_error == "The endpoint's secret is not base64."


def test_they_are_sent_once_the_secret_can_be_read(
    subscribe: Subscribe, receiver: Receiver, deliver: Deliver
) -> None:
    subscribe()
    _make_secret_unreadable()
    _publish(TENANT)
    deliver()

    receiver.secrets["/hook"] = generate_secret()
    _store_secret(encrypt(receiver.secrets["/hook"]))
    with pin_time(NOON + UNSIGNED_RETRY_DELAY + timedelta(seconds=1)):
        assert deliver().delivered == 1
    assert receiver.sequences("/hook") == [1]


def test_many_deliveries_are_postponed_in_several_passes(subscribe: Subscribe, deliver: Deliver) -> None:
    subscribe()
    _make_secret_unreadable()
    store_events(*(build_event(new_id(), 1) for _ in range(POSTPONE_BATCH + 3)))
    drain(build_dispatcher(WebhookPublisher()))
    assert deliver().retried == POSTPONE_BATCH + 3


def test_the_log_names_the_endpoint_once(
    subscribe: Subscribe, deliver: Deliver, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = subscribe()
    _make_secret_unreadable()
    _publish(TENANT)
    deliver()
    with pin_time(NOON + 2 * UNSIGNED_RETRY_DELAY):
        deliver()
    lines = [line for record in caplog.records if "webhooks_not_signed" in (line := record.getMessage())]
    assert len(lines) == 1
    assert str(endpoint.endpoint_id) in lines[0]

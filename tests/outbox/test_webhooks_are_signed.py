"""A delivery is a POST of CloudEvents JSON, signed according to Standard Webhooks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest
from django.db import connection

from eventservice.kernel.ids import new_id
from outbox.models import WebhookEndpoint
from outbox.publishers.webhook.deliverer import DeliveryResult
from outbox.publishers.webhook.endpoints import create_endpoint
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.outbox.receiver import Receiver
from tests.outbox.support import build_dispatcher, drain, store_run

pytestmark = pytest.mark.django_db


def test_the_receiver_can_verify_it(
    subscribe: Callable[..., WebhookEndpoint],
    receiver: Receiver,
    deliver: Callable[[], DeliveryResult],
    at_noon: datetime,
) -> None:
    subscribe()
    event = store_run(new_id(), 1)[0]
    drain(build_dispatcher(WebhookPublisher()))

    assert deliver().delivered == 1
    (headers,) = receiver.headers
    assert headers["webhook-id"] == str(event.event_id) == receiver.accepted[0]["id"]
    assert headers["webhook-timestamp"] == str(int(at_noon.timestamp()))
    assert headers["content-type"] == "application/cloudevents+json"
    assert receiver.accepted[0]["data"] == {"n": 1}


def test_the_secret_is_stored_encrypted() -> None:
    _, secret = create_endpoint(new_id(), "http://example.test/")
    with connection.cursor() as cursor:
        cursor.execute("SELECT secret FROM webhook_endpoints")
        (stored,) = cursor.fetchone()
    assert secret not in stored
    assert stored.startswith("enc:v1:")

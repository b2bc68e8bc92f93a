"""A slow or dead endpoint delays neither other endpoints nor the outbox."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from eventservice.db.now import DbNow
from eventservice.kernel.ids import new_id
from eventservice.runtime.dispatcher import EgressTransport
from outbox.models import WebhookDelivery
from outbox.publishers.webhook.deliverer import WebhookDeliverer, WebhookRequest
from outbox.publishers.webhook.delivery_queue import WebhookResult
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.outbox.conftest import Subscribe
from tests.outbox.receiver import Receiver
from tests.outbox.support import (
    OTHER_TENANT,
    TENANT,
    build_dispatcher,
    build_event,
    drain,
    store_events,
    store_run,
)

pytestmark = pytest.mark.django_db


class Hanging:
    """A transport that accepts all requests and returns no result."""

    def __init__(self) -> None:
        self.accepted: Counter[uuid.UUID] = Counter()

    def send(self, requests: Sequence[WebhookRequest]) -> None:
        self.accepted.update(request.delivery.tenant_id for request in requests)

    def collect(self, timeout: float) -> list[WebhookResult]:
        return []


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Return the event for which endpoints that hang wait."""
    release = threading.Event()
    yield release
    release.set()


def _publish(count: int, tenant_id: uuid.UUID = TENANT) -> None:
    store_run(new_id(), count, tenant_id=tenant_id)
    drain(build_dispatcher(WebhookPublisher()))


def _publish_of_many_calls(count: int, tenant_id: uuid.UUID = TENANT) -> None:
    store_events(*(build_event(new_id(), 1, tenant_id=tenant_id) for _ in range(count)))
    drain(build_dispatcher(WebhookPublisher()))


def _deliver_until(deliverer: WebhookDeliverer, path: str, receiver: Receiver, count: int) -> None:
    for _ in range(200):
        if len(receiver.sequences(path)) == count:
            return
        deliverer.deliver_once()
    raise AssertionError(f"{path} has received {receiver.sequences(path)}")


def test_a_hanging_endpoint_holds_up_no_other(
    subscribe: Subscribe, receiver: Receiver, transport: EgressTransport, release: threading.Event
) -> None:
    subscribe("/hangs")
    subscribe("/healthy")

    def respond(path: str, event: object) -> int:
        if path == "/hangs":
            release.wait(10)
        return 204

    receiver.respond = respond
    _publish(5)
    deliverer = WebhookDeliverer(transport)
    _deliver_until(deliverer, "/healthy", receiver, 5)
    assert receiver.sequences("/hangs") == []
    release.set()
    _deliver_until(deliverer, "/hangs", receiver, 5)


def test_many_slow_endpoints_of_a_tenant_hold_up_no_other_tenants(
    subscribe: Subscribe, receiver: Receiver, transport: EgressTransport, release: threading.Event
) -> None:
    for number in range(40):
        subscribe(f"/slow/{number}")
    subscribe("/healthy", OTHER_TENANT)

    def respond(path: str, event: object) -> int:
        if path != "/healthy":
            release.wait(10)
        return 204

    receiver.respond = respond
    _publish(1)
    deliverer = WebhookDeliverer(transport, max_in_flight=8)
    for _ in range(3):
        deliverer.deliver_once()
    _publish(3, OTHER_TENANT)
    _deliver_until(deliverer, "/healthy", receiver, 3)
    assert {event["path"] for event in receiver.accepted} == {"/healthy"}


def test_a_tenant_takes_no_more_capacity_than_it_leaves_free(subscribe: Subscribe) -> None:
    for number in range(5):
        subscribe(f"/one/{number}")
        subscribe(f"/other/{number}", OTHER_TENANT)
    hanging = Hanging()
    deliverer = WebhookDeliverer(hanging, max_in_flight=12, collect_seconds=0)
    _publish_of_many_calls(9)
    for _ in range(5):
        deliverer.deliver_once()
    assert hanging.accepted == {TENANT: 6}
    _publish_of_many_calls(9, OTHER_TENANT)
    for _ in range(5):
        deliverer.deliver_once()
    assert hanging.accepted == {TENANT: 6, OTHER_TENANT: 3}


def test_one_endpoint_of_each_tenant_comes_before_the_second_of_any(
    subscribe: Subscribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        subscribe(f"/many/{number}")
    subscribe("/one", OTHER_TENANT)
    _publish(1)
    _publish(1, OTHER_TENANT)
    monkeypatch.setattr("outbox.publishers.webhook.deliverer.MAX_STARTS_PER_PASS", 2)
    hanging = Hanging()
    WebhookDeliverer(hanging).deliver_once()
    assert hanging.accepted == {TENANT: 1, OTHER_TENANT: 1}


def test_a_response_is_recorded_while_others_of_its_batch_hang(
    subscribe: Subscribe, receiver: Receiver, transport: EgressTransport, release: threading.Event
) -> None:
    subscribe()
    hangs = new_id()

    def respond(path: str, event: dict[str, object]) -> int:
        if event["subject"] == str(hangs):
            release.wait(10)
        return 204

    receiver.respond = respond
    store_run(hangs, 1)
    _publish(1)
    deliverer = WebhookDeliverer(transport, collect_seconds=10)
    assert deliverer.deliver_once().delivered == 1
    assert WebhookDelivery.across_tenants.get(state="Pending").aggregate_id == hangs


def test_many_failing_endpoints_leave_capacity_to_the_others(
    subscribe: Subscribe, receiver: Receiver, transport: EgressTransport, release: threading.Event
) -> None:
    for number in range(8):
        subscribe(f"/hangs/{number}")
    subscribe("/healthy")
    hanging = threading.Semaphore(0)
    failing = True

    def respond(path: str, event: object) -> int:
        if path == "/healthy":
            return 204
        if failing:
            return 500
        hanging.release()
        release.wait(10)
        return 204

    receiver.respond = respond
    _publish(1)
    deliverer = WebhookDeliverer(transport, max_in_flight=8)
    _deliver_until(deliverer, "/healthy", receiver, 1)
    while len(deliverer._failing) < 8:
        deliverer.deliver_once()
    failing = False
    _make_all_due()
    deliverer.deliver_once()
    assert hanging.acquire(timeout=5)
    _publish(3)
    _deliver_until(deliverer, "/healthy", receiver, 4)


def _make_all_due() -> None:
    WebhookDelivery.across_tenants.filter(state="Pending").update(next_attempt_at=DbNow())

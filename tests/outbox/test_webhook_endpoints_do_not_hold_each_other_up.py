"""A slow or dead endpoint costs the others nothing, and the outbox nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from eventservice.kernel.ids import new_id
from outbox.models import WebhookEndpoint
from outbox.publishers.webhook import WebhookPublisher
from outbox.webhooks.delivery import WebhookDeliverer
from tests.outbox.receiver import Receiver, send
from tests.outbox.support import append_run, dispatcher, drain

pytestmark = pytest.mark.django_db

Subscribe = Callable[..., WebhookEndpoint]


def _until(deliverer: WebhookDeliverer, path: str, receiver: Receiver, count: int) -> None:
    for _ in range(200):
        if len(receiver.sequences(path)) == count:
            return
        deliverer.deliver_once()
    raise AssertionError(f"{path} has received {receiver.sequences(path)}")


def test_a_hanging_endpoint_holds_up_no_other(subscribe: Subscribe, receiver: Receiver) -> None:
    subscribe("/hangs")
    subscribe("/well")
    release = threading.Event()

    def answer(path: str, event: object) -> int:
        if path == "/hangs":
            release.wait(10)
        return 204

    receiver.answer = answer
    append_run(new_id(), 5)
    drain(dispatcher(WebhookPublisher()))
    deliverer = WebhookDeliverer(send)
    try:
        _until(deliverer, "/well", receiver, 5)
        assert receiver.sequences("/hangs") == []
        release.set()
        _until(deliverer, "/hangs", receiver, 5)
    finally:
        release.set()
        deliverer.close()


def test_many_failing_endpoints_leave_lanes_to_the_others(subscribe: Subscribe, receiver: Receiver) -> None:
    for number in range(8):
        subscribe(f"/hangs/{number}")
    subscribe("/well")
    release, hanging = threading.Event(), threading.Semaphore(0)
    failing = True

    def answer(path: str, event: object) -> int:
        if path == "/well":
            return 204
        if failing:
            return 500
        hanging.release()
        release.wait(10)
        return 204

    receiver.answer = answer
    append_run(new_id(), 1)
    drain(dispatcher(WebhookPublisher()))
    deliverer = WebhookDeliverer(send, lanes=4)
    try:
        _until(deliverer, "/well", receiver, 1)
        while len(deliverer._failing) < 8:
            deliverer.deliver_once()
        failing = False
        _due_now()
        deliverer.deliver_once()
        assert hanging.acquire(timeout=5)
        append_run(new_id(), 3)
        drain(dispatcher(WebhookPublisher()))
        _until(deliverer, "/well", receiver, 4)
    finally:
        release.set()
        deliverer.close()


def _due_now() -> None:
    from eventservice.kernel.now import DbNow
    from outbox.models import WebhookDelivery

    WebhookDelivery.objects.across_tenants().filter(state="Pending").update(next_attempt_at=DbNow())

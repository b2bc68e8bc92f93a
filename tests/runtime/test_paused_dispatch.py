"""A dispatcher sends nothing while dispatch is paused: no webhook, and nothing to a publisher or broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from eventservice.kernel.ids import new_id
from eventservice.runtime.dispatcher import DispatcherRole, EgressTransport
from outbox.broker_queue import BrokerQueue
from outbox.models import BrokerQueueEntry, OutboxEvent, WebhookDelivery
from outbox.publishers.webhook.endpoints import create_endpoint
from outbox.publishers.webhook.publisher import WebhookPublisher
from outbox.store import read_heads
from outbox.writer import PARTITIONS
from tests.outbox.conftest import start_egress
from tests.outbox.receiver import run_receiver
from tests.outbox.support import TENANT, RecordingPublisher, store_run
from timers.pause import find_pause, pause_dispatch, resume_dispatch

pytestmark = pytest.mark.django_db(transaction=True)


class RecordingBroker(RecordingPublisher):
    name = "main"

    def close(self) -> None:
        pass


class PausedDispatcher:
    """A dispatcher with a publisher, a broker and webhooks, whose looks for a pause are not waited for."""

    def __init__(self) -> None:
        self.publisher, self.broker = RecordingPublisher(), RecordingBroker()
        self.role = DispatcherRole(
            [self.publisher, BrokerQueue("main"), WebhookPublisher()],
            EgressTransport(start_egress, lambda _tenant_id: ()),
            max_in_flight=8,
            brokers=[self.broker],
        )

    def step(self, times: int = 20) -> None:
        for _ in range(times):
            self.role._dispatcher._heartbeat_at = self.role._dispatch_at = float("-inf")
            self.role.step(0.02)


@pytest.fixture
def dispatcher() -> Iterator[PausedDispatcher]:
    made = PausedDispatcher()
    yield made
    made.role.stop(5.0)


def list_sent(dispatcher: PausedDispatcher) -> tuple[int, int]:
    return len(dispatcher.publisher.accepted), len(dispatcher.broker.accepted)


def test_a_dispatcher_that_starts_paused_sends_nothing_until_dispatch_is_resumed(tenant: Any) -> None:
    pause_dispatch("somebody", "")
    with run_receiver() as receiver:
        create_endpoint(TENANT, receiver.build_url("/hook"))
        store_run(new_id(), 3)
        paused = PausedDispatcher()
        paused.step()
        assert list_sent(paused) == (0, 0)
        assert OutboxEvent.across_tenants.filter(published_at=None).count() == 3
        # It keeps its partitions meanwhile: nobody else would send either.
        assert len(paused.role._dispatcher.partitions) == PARTITIONS
        paused.role.empty_outbox()
        assert list_sent(paused) == (0, 0)
        resume_dispatch()
        while len(receiver.accepted) < 3 or list_sent(paused) != (3, 3):
            paused.step(1)
        paused.role.stop(5.0)


def test_what_waits_in_queues_when_dispatch_is_paused_stays_there(
    tenant: Any, dispatcher: PausedDispatcher
) -> None:
    dispatcher.step()
    pause_dispatch("somebody", "")
    dispatcher.step()
    # As after a restore: the events were published before, and are in the queues of brokers and webhooks.
    with run_receiver() as receiver:
        create_endpoint(TENANT, receiver.build_url("/hook"))
        store_run(new_id(), 2)
        events = read_heads(range(PARTITIONS), 10)[0]
        BrokerQueue("main").publish(events)
        WebhookPublisher().publish(events)
        dispatcher.step()
        assert (dispatcher.broker.accepted, receiver.accepted) == ([], [])
        assert (BrokerQueueEntry.objects.count(), WebhookDelivery.across_tenants.count()) == (2, 2)
        resume_dispatch()
        while len(receiver.accepted) < 2 or len(dispatcher.broker.accepted) < 2:
            dispatcher.step(1)


def test_a_pause_is_one_and_keeps_its_first_reason() -> None:
    assert find_pause() is None
    assert pause_dispatch("ada", "restore")
    assert not pause_dispatch("oscar", "another")
    pause = find_pause()
    assert pause is not None
    assert (pause.paused_by, pause.reason) == ("ada", "restore")
    assert resume_dispatch()
    assert not resume_dispatch()
    assert find_pause() is None

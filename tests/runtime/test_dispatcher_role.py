"""The dispatcher's role: a pass that failed is made again at once, and a role that has stopped leaves nothing behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from eventservice.db import errors
from eventservice.kernel.ids import new_id
from eventservice.runtime.dispatcher import DispatcherRole, EgressTransport
from execution.egress import Egress
from outbox import broker_queue
from outbox.broker_queue import BrokerQueue
from outbox.envelope import Envelope
from outbox.models import BrokerQueueEntry, OutboxEvent
from outbox.publisher_spec import PublisherSpec
from outbox.publishers import build_publishers
from outbox.publishers.webhook.delivery_queue import IDLE_SECONDS
from outbox.publishers.webhook.endpoints import create_endpoint, send_test_event
from tests.outbox.conftest import start_egress
from tests.outbox.receiver import run_receiver
from tests.outbox.support import TENANT, RecordingPublisher, store_run

pytestmark = pytest.mark.django_db(transaction=True)


def build_role(start_egress: Callable[[], Egress]) -> DispatcherRole:
    return DispatcherRole(
        build_publishers([PublisherSpec("log")], "json"),
        EgressTransport(start_egress, lambda _tenant_id: ()),
        max_in_flight=8,
    )


class RecordingBroker(RecordingPublisher):
    name = "main"

    def close(self) -> None:
        pass


class HangingBroker(RecordingBroker):
    """Accepts events when it may answer."""

    def __init__(self) -> None:
        super().__init__()
        self.was_asked = threading.Event()
        self.may_answer = threading.Event()

    def publish(self, events: Sequence[Envelope]) -> None:
        self.was_asked.set()
        assert self.may_answer.wait(30.0)
        super().publish(events)


def refuse_to_start_an_egress() -> Egress:
    raise AssertionError("nothing is to be sent")


@pytest.fixture
def role() -> Iterator[DispatcherRole]:
    role = build_role(refuse_to_start_an_egress)
    yield role
    role.stop(0.0)


def step_until_it_raises(role: DispatcherRole) -> None:
    while True:
        role.step(0.0)


def raise_locked() -> None:
    raise OperationalError("database is locked")


def count_unpublished() -> int:
    return OutboxEvent.across_tenants.filter(published_at=None).count()


def test_a_pass_that_failed_is_made_with_the_next_step_although_nothing_new_is_written(
    role: DispatcherRole, monkeypatch: pytest.MonkeyPatch, elsewhere: Callable[..., Future[Any]]
) -> None:
    while role.step(0.0) is None or not role._dispatcher.partitions:
        pass
    elsewhere(store_run, new_id(), 1).result()

    with monkeypatch.context() as outage:
        outage.setattr(role._dispatcher, "dispatch_once", raise_locked)
        with pytest.raises(OperationalError):
            step_until_it_raises(role)
    result = role.step(0.0)
    assert result is not None
    assert result.published == 1
    assert count_unpublished() == 0


def test_a_queue_that_cannot_be_read_delays_no_other_publisher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_queue, "read_broker_queue", lambda *_: raise_locked())
    broker = RecordingBroker()
    transport = EgressTransport(refuse_to_start_an_egress, lambda _tenant_id: ())
    role = DispatcherRole([BrokerQueue("main")], transport, max_in_flight=8, brokers=[broker])
    store_run(new_id(), 1)
    while count_unpublished():
        role.step(0.0)
    monkeypatch.undo()
    while not broker.accepted:
        role.step(0.1)
    role.stop(1.0)


@pytest.mark.parametrize("database_is_unavailable", [False, True])
def test_no_thread_of_the_egress_outlives_the_role(
    database_is_unavailable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = build_role(start_egress)
    with run_receiver() as receiver:
        create_endpoint(TENANT, receiver.build_url("/hook"))
        store_run(new_id(), 2)
        while receiver.sequences("/hook") != [1, 2]:
            role.step(0.0)
    assert "egress" in list_threads()
    if database_is_unavailable:
        monkeypatch.setattr(errors, "PAUSE_SECONDS", 0.0)
        monkeypatch.setattr(role._dispatcher, "release", raise_locked)
        monkeypatch.setattr(role._node, "leave", raise_locked)
    role.stop(0.0)
    assert not {"egress", "webhooks"} & list_threads()


def list_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_an_idle_dispatcher_makes_one_statement_a_pass_and_one_for_deliveries(role: DispatcherRole) -> None:
    create_endpoint(TENANT, "http://example.test/")
    while not role._dispatcher.partitions:
        role.dispatch_once()
    role._dispatcher._heartbeat_at = time.monotonic() + 600
    role._deliver_at = 0.0
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as queries:
            role.dispatch_once()
        counts.append(len(queries))
    assert counts == [2, 1]


def test_a_test_event_is_sent_although_nothing_is_published(elsewhere: Callable[..., Future[Any]]) -> None:
    role = build_role(start_egress)
    with run_receiver() as receiver:
        endpoint, _ = create_endpoint(TENANT, receiver.build_url("/hook"))
        for _ in range(5):
            role.step(0.0)
        if connection.vendor == "sqlite":  # the role of a server's database looks every second
            # The role would look for deliveries again after this time without any change.
            assert role._deliver_at - time.monotonic() > IDLE_SECONDS / 2
        elsewhere(send_test_event, TENANT, endpoint.endpoint_id).result()
        for _ in range(int(IDLE_SECONDS / 2 / 0.1)):
            role.step(0.1)
            if receiver.accepted:
                break
        assert [event["type"] for event in receiver.accepted] == ["WebhookTest"]
    role.stop(0.0)


def test_what_a_broker_accepts_during_the_stop_is_not_sent_again_by_the_next_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = HangingBroker()
    transport = EgressTransport(refuse_to_start_an_egress, lambda _tenant_id: ())
    role = DispatcherRole([BrokerQueue("main")], transport, max_in_flight=8, brokers=[broker])
    store_run(new_id(), 1)
    while not broker.was_asked.is_set():
        role.step(0.1)
    queued_at_release: list[int] = []
    release = role._dispatcher.release

    def release_partitions() -> None:
        queued_at_release.append(BrokerQueueEntry.objects.count())
        release()

    monkeypatch.setattr(role._dispatcher, "release", release_partitions)
    monkeypatch.setattr(role, "FINISH_SECONDS", 30.0)
    threading.Timer(0.1, broker.may_answer.set).start()
    role.stop(30.0)
    assert queued_at_release == [0]


def test_the_outbox_is_emptied_by_a_node_that_stays_alive(
    role: DispatcherRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role._dispatcher, "_batch", 1)
    monkeypatch.setattr(role._dispatcher, "_max_events", 1)
    heartbeats: list[float] = []
    monkeypatch.setattr(role, "_heartbeat", lambda: heartbeats.append(time.monotonic()))
    store_run(new_id(), 4)
    role.empty_outbox()
    assert count_unpublished() == 0
    assert len(heartbeats) >= 4  # one for each pass


def test_a_dispatcher_with_other_publishers_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    transport = EgressTransport(refuse_to_start_an_egress, lambda _tenant_id: ())
    first = build_role(refuse_to_start_an_egress)
    first.dispatch_once()
    assert "different_publishers" not in caplog.text
    second = DispatcherRole([BrokerQueue("main")], transport, max_in_flight=8)
    for _ in range(2):
        second._dispatcher.heartbeat()
    lines = [line for record in caplog.records if "different_publishers" in (line := record.getMessage())]
    assert len(lines) == 1
    assert "log,webhook" in lines[0]
    for role in (second, first):
        role.stop(0.0)

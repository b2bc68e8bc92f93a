"""The queue of the cluster's tasks goes by the database's clock, and goes on when that is set."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django_q.brokers import get_broker
from django_q.conf import Conf
from django_q.models import OrmQ
from django_q.signing import SignedPackage

from eventservice.db.now import DbNow
from eventservice.runtime.broker import DatabaseClockBroker
from tests.database_clock import set_clock_back

pytestmark = pytest.mark.django_db


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> DatabaseClockBroker:
    monkeypatch.setattr(Conf, "POLL", 0.0)
    return DatabaseClockBroker()


def test_tasks_are_delivered_once_and_in_order(broker: DatabaseClockBroker) -> None:
    first, second = broker.enqueue("first"), broker.enqueue("second")
    assert broker.dequeue() == [(first, "first")]
    assert (broker.queue_size(), broker.lock_size()) == (1, 1)
    assert broker.dequeue() == [(second, "second")]
    assert broker.dequeue() == []
    broker.acknowledge(first)
    assert [entry.pk for entry in OrmQ.objects.all()] == [second]


def test_a_task_whose_worker_died_is_delivered_again(broker: DatabaseClockBroker) -> None:
    key = broker.enqueue("task")
    broker.dequeue()
    set_clock_back(-Conf.RETRY + 5)
    assert broker.dequeue() == []
    set_clock_back(-10)
    assert broker.dequeue() == [(key, "task")]


@pytest.mark.parametrize("seconds", [60, 86_400])
def test_a_task_that_was_enqueued_before_the_clock_was_set_back_is_delivered(
    broker: DatabaseClockBroker, seconds: int
) -> None:
    key = broker.enqueue("task")
    set_clock_back(seconds)
    assert broker.dequeue() == [(key, "task")]


def test_a_lock_that_lasts_longer_than_any_is_void(broker: DatabaseClockBroker) -> None:
    key = broker.enqueue("task")
    broker.dequeue()
    set_clock_back(5)
    assert broker.dequeue() == []
    set_clock_back(10)
    assert broker.dequeue() == [(key, "task")]
    assert broker.dequeue() == []


def test_another_queue_has_tasks_of_its_own(broker: DatabaseClockBroker) -> None:
    broker.enqueue("task")
    assert DatabaseClockBroker(list_key="other").dequeue() == []


def test_a_cluster_that_is_faster_gets_the_task(broker: DatabaseClockBroker) -> None:
    broker.enqueue("task")
    ((key, _, seen),) = broker._read_free(1)
    OrmQ.objects.update(lock=DbNow(timedelta(seconds=1)))
    assert not broker._lock(key, seen)


def test_it_waits_once_all_tasks_are_taken(
    broker: DatabaseClockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(Conf, "POLL", 2.0)
    monkeypatch.setattr(time, "sleep", waits.append)
    for task in ("first", "second"):
        broker.enqueue(task)
    assert [bool(broker.dequeue()) for _ in range(2)] == [True, True]
    assert waits == []
    with CaptureQueriesContext(connection) as queries:
        assert broker.dequeue() == []
    assert waits == [2.0]
    assert len(queries) == 1


# --- signatures ---


def enqueue_with(secret_key: str, monkeypatch: pytest.MonkeyPatch) -> int:
    with monkeypatch.context() as patch:
        patch.setattr(Conf, "SECRET_KEY", secret_key)
        return DatabaseClockBroker().enqueue(SignedPackage.dumps({"args": [1]}))


def test_a_task_that_was_signed_with_a_fallback_is_delivered(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.SECRET_KEY_FALLBACKS = ["the previous one" * 2]
    monkeypatch.setattr(Conf, "POLL", 0.0)
    keys = [enqueue_with("the previous one" * 2, monkeypatch), enqueue_with(Conf.SECRET_KEY, monkeypatch)]
    found = [entry for _ in range(2) for entry in get_broker().dequeue()]
    assert [(key, SignedPackage.loads(payload)) for key, payload in found] == [
        (key, {"args": [1]}) for key in keys
    ]


def test_a_task_that_was_signed_with_another_key_is_dropped_without_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Conf, "POLL", 0.0)
    enqueue_with("somebody else's key" * 2, monkeypatch)
    assert get_broker().dequeue() == []
    (record,) = caplog.records
    assert "task_dropped" in record.getMessage()
    assert record.levelname == "WARNING"
    assert not OrmQ.objects.exists()

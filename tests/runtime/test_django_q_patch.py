"""The internals of django-q2 that `eventservice.runtime.django_q_patch` changes have the shape that it expects."""

from __future__ import annotations

import inspect
import logging
import signal
from collections.abc import Callable, Iterator
from multiprocessing import Event, Value
from types import SimpleNamespace
from typing import Any

import django_q.cluster
import django_q.signals
import django_q.timeout
import django_q.worker
import pytest
from django.db import ProgrammingError
from django_q.cluster import Cluster, Sentinel

from eventservice.runtime import django_q_patch
from eventservice.runtime.cluster_process import EXIT_GRACE_SECONDS, ClusterProcess
from eventservice.runtime.django_q_patch import (
    GracefulSentinel,
    run_monitor,
    run_pusher,
    run_worker,
)
from tests.database_errors import lock_timeout


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> ClusterProcess:
    process = ClusterProcess()
    monkeypatch.setattr(django_q_patch, "this_process", process)
    return process


@pytest.fixture
def restore_signals() -> Iterator[None]:
    """Restore SIGTERM and SIGALRM of the test run afterwards."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)}
    yield
    signal.alarm(0)
    for number, handler in kept.items():
        signal.signal(number, handler)


def log_error(error: Exception, caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    """Return the record that django-q2 logs when it could not save the result of a task because of this error."""
    logger = logging.getLogger("django-q")
    logger.addFilter(django_q_patch.shorten_known_trouble)
    try:
        raise error
    except Exception:
        logger.exception("Could not save task result")
    finally:
        logger.removeFilter(django_q_patch.shorten_known_trouble)
    return caplog.records[-1]


def test_known_trouble_of_the_database_is_logged_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    record = log_error(lock_timeout(), caplog)
    expected = "Could not save task result: Another process has locked the database for too long. ("
    assert record.getMessage().startswith(expected)
    assert "Lock wait timeout exceeded" in record.getMessage()
    assert record.exc_info is None


@pytest.mark.parametrize("error", [ValueError("100 %"), ProgrammingError("syntax error")])
def test_other_errors_are_logged_with_their_traceback(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    assert log_error(error, caplog).exc_info


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (django_q.worker.worker, ["task_queue", "result_queue", "timer", "timeout"]),
        (django_q.pusher.pusher, ["task_queue", "event", "broker"]),
        (django_q.monitor.monitor, ["result_queue", "broker"]),
        (Sentinel.spawn_process, ["self", "target", "args"]),
        (Sentinel.start, ["self"]),
        (Sentinel.guard, ["self"]),
        (Sentinel.stop, ["self"]),
        (Cluster.start, ["self"]),
        (Cluster.sig_handler, ["self", "signum", "frame"]),
    ],
)
def test_the_changed_functions_have_the_same_parameters(
    function: Callable[..., object], parameters: list[str]
) -> None:
    assert list(inspect.signature(function).parameters) == parameters


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("Sentinel", Cluster.start),
        ("Stat", Sentinel.guard),
        ("Stat", Sentinel.spawn_cluster),
        ("worker", Sentinel.spawn_worker),
        ("worker", Sentinel.spawn_process),
        ("pusher", Sentinel.spawn_pusher),
        ("monitor", Sentinel.spawn_monitor),
    ],
)
def test_what_is_replaced_is_taken_from_the_module(name: str, user: Callable[..., object]) -> None:
    assert name in user.__code__.co_names
    assert user.__globals__ is vars(django_q.cluster)


def test_the_sentinel_stops_when_its_guard_ends() -> None:
    names = Sentinel.guard.__code__.co_names
    assert names.index("stop_event") < names.index("stop")


@pytest.mark.usefixtures("restore_signals")
def test_processes_inherit_the_default_of_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    spawned: list[tuple[object, object]] = []

    class FakeProcess:
        def __init__(self, *, target: object, args: tuple[object, ...], name: str) -> None:
            self.target, self.args = target, args

        def start(self) -> None:
            spawned.append((self.target, signal.getsignal(signal.SIGTERM)))

    monkeypatch.setattr(
        django_q.cluster, "get_mp_context", lambda: SimpleNamespace(Process=FakeProcess), raising=False
    )
    monkeypatch.setattr(django_q.cluster, "Process", FakeProcess)
    for name, target in {"worker": run_worker, "monitor": run_monitor, "pusher": run_pusher}.items():
        monkeypatch.setattr(django_q.cluster, name, target)
    sentinel = GracefulSentinel(Event(), Event(), "cluster", broker=object(), start=False)
    sentinel.spawn_worker()
    sentinel.spawn_monitor()
    sentinel.spawn_pusher()

    (worker,) = sentinel.pool
    assert worker.timer is worker.args[2]
    assert spawned == [(target, signal.SIG_DFL) for target in (run_worker, run_monitor, run_pusher)]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


@pytest.mark.usefixtures("restore_signals")
def test_extending_the_deadline_replaces_the_alarm_and_the_countdown_of_the_task(
    process: ClusterProcess,
) -> None:
    process.countdown = Value("f", 3.0)
    with django_q.timeout.TimeoutHandler(1):
        process.extend_task_deadline(39.5)
        assert signal.alarm(0) == 40
    assert process.countdown is not None
    assert process.countdown.value == 40 + EXIT_GRACE_SECONDS


def test_the_sentinel_counts_down_and_replaces_a_worker_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced: list[Any] = []
    stop = Event()
    sentinel = GracefulSentinel(stop, Event(), _ClusterId(), broker=SimpleNamespace(list_key=""), start=False)
    timer = Value("f", 2.0)
    worker = SimpleNamespace(timer=timer, is_alive=lambda: True)
    alive = SimpleNamespace(is_alive=lambda: True)
    sentinel.pool, sentinel.monitor, sentinel.pusher = [worker], alive, alive
    monkeypatch.setattr(ClusterProcess, "watch_lifeline", lambda *args, **kwargs: None)
    monkeypatch.setattr(django_q.cluster, "Stat", lambda sentinel: SimpleNamespace(save=lambda: None))
    monkeypatch.setattr(sentinel, "stop", lambda: None)
    monkeypatch.setattr(django_q.cluster.Conf, "GUARD_CYCLE", 1.0)
    monkeypatch.setattr(stop, "wait", lambda seconds: bool(replaced))

    def replace(process: object) -> None:
        replaced.append(process)

    monkeypatch.setattr(sentinel, "reincarnate", replace)
    sentinel.guard()
    assert (replaced, timer.value) == ([worker], 0.0)


class _ClusterId:
    hex = "0" * 32

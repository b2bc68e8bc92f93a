"""A4: whatever its processes wait for, a cluster that is terminated stops within SHUTDOWN_SECONDS + 10 s.

The exit status and the log say whether anything was lost.
"""

from __future__ import annotations

import os
import re
import signal
import time

import pytest
from django_q.conf import Conf
from django_q.models import OrmQ
from django_q.tasks import async_task

from eventservice.db.now import DbNow
from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from orchestration.states import Status
from tests.database_clock import allow_for_load
from tests.database_locks import hold_locks
from tests.process_harness import (
    ProcessHarness,
    Program,
    build_call,
    find_children,
    find_role_process,
    list_group,
    report,
    submit_calls,
    wait_until,
)
from tests.tcp_proxy import TcpProxy, Trouble

SHUTDOWN_SECONDS = 2
PROMISED = allow_for_load(SHUTDOWN_SECONDS + 10.0)
ENV = {"SHUTDOWN_SECONDS": str(SHUTDOWN_SECONDS)}
# More than fit into django-q2's queue, and each occupies a worker.
STUCK_TASKS = 12


@pytest.fixture
def cluster(harness: ProcessHarness) -> Program:
    cluster = harness.start_cluster(**ENV)
    wait_until(lambda: find_role_process("engine", cluster), "a worker plays the engine")
    return cluster


def stop_in_time(cluster: Program) -> int:
    started_at = time.monotonic()
    cluster.terminate()
    return wait_in_time(cluster, started_at)


def wait_in_time(cluster: Program, started_at: float) -> int:
    status = cluster.wait(120)
    took = time.monotonic() - started_at
    report(f"stopped after {took:.1f} s with {status}")
    assert took <= PROMISED
    assert not list_group(cluster.pid)
    return status


def fill_queue() -> None:
    """Give the workers tasks that never end, until django-q2's queue is full and its pusher waits for room in it."""
    for _ in range(STUCK_TASKS):
        async_task("time.sleep", 3600)
    # Each worker has one, and the pusher one more than the queue has room for.
    taken = 2 + Conf.QUEUE_LIMIT + 1
    wait_until(lambda: OrmQ.objects.filter(lock__gt=DbNow()).count() >= taken, "the pusher is stuck")


def find_pusher(cluster: Program) -> int:
    """Return the process that the sentinel forked last."""
    (sentinel,) = find_children(cluster.pid)
    return max(find_children(sentinel))


@pytest.mark.chaos
def test_a_locked_database(harness: ProcessHarness, cluster: Program) -> None:
    with hold_locks(harness):
        stop_in_time(cluster)


@pytest.mark.chaos
def test_results_that_cannot_be_recorded_are_said_to_be_lost(
    harness: ProcessHarness, cluster: Program
) -> None:
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    submitted = submit_calls(build_call(tenant, f"{target.url}/delay/5") for _ in range(7))
    wait_until(lambda: target.list_call_ids() == set(submitted), "the attempts are in flight")
    with hold_locks(harness):
        assert stop_in_time(cluster) == 1
    # Some may not have been collected when the engine began to wait for the database.
    lost = re.search(r"(role_stopped|ended_before_it_stopped).*in_flight=7 lost_results=\d", cluster.log)
    assert lost, cluster.log


@pytest.mark.chaos
def test_results_are_recorded_if_the_lock_ends_in_time(harness: ProcessHarness) -> None:
    cluster = harness.start_cluster(SHUTDOWN_SECONDS="15")
    wait_until(lambda: find_role_process("engine", cluster), "a worker plays the engine")
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    submitted = submit_calls(build_call(tenant, f"{target.url}/delay/2") for _ in range(7))
    wait_until(lambda: target.list_call_ids() == set(submitted), "the attempts are in flight")
    with hold_locks(harness):
        cluster.terminate()
        time.sleep(7)
    assert cluster.wait() == 0
    outcomes = ServiceCall.objects.for_tenant(tenant).values_list("status", "attempt")
    assert set(outcomes) == {(Status.SUCCEEDED, 1)}
    assert "lost_results=0" in cluster.log


def test_a_full_queue_keeps_no_cluster(cluster: Program) -> None:
    fill_queue()
    assert stop_in_time(cluster) == 1


@pytest.mark.chaos
def test_a_full_queue_and_a_locked_database(harness: ProcessHarness, cluster: Program) -> None:
    fill_queue()
    with hold_locks(harness):
        assert stop_in_time(cluster) == 1


@pytest.mark.chaos
@pytest.mark.parametrize("full", [False, True], ids=["empty", "full"])
def test_a_dead_pusher(full: bool, harness: ProcessHarness, cluster: Program) -> None:
    if full:
        fill_queue()
    with hold_locks(harness):
        time.sleep(2)
        os.kill(find_pusher(cluster), signal.SIGKILL)
        stop_in_time(cluster)


@pytest.mark.chaos
def test_signals_come_again_and_again(harness: ProcessHarness, cluster: Program) -> None:
    with hold_locks(harness):
        started_at = time.monotonic()
        while cluster.is_running and time.monotonic() - started_at < 3:
            cluster.terminate()
            time.sleep(0.01)
        wait_in_time(cluster, started_at)


@pytest.mark.chaos
def test_all_processes_are_terminated_at_once(harness: ProcessHarness, cluster: Program) -> None:
    with hold_locks(harness):
        started_at = time.monotonic()
        os.killpg(cluster.pid, signal.SIGTERM)
        wait_in_time(cluster, started_at)


@pytest.mark.chaos
@pytest.mark.parametrize("victim", ["worker", "sentinel"])
def test_a_frozen_process(victim: str, cluster: Program) -> None:
    (sentinel,) = find_children(cluster.pid)
    frozen = find_role_process("engine", cluster) if victim == "worker" else sentinel
    assert frozen
    os.kill(frozen, signal.SIGSTOP)
    assert stop_in_time(cluster) == 1


@pytest.mark.chaos
@pytest.mark.parametrize("trouble", [Trouble.REFUSE, Trouble.SWALLOW, Trouble.HOLD])
@pytest.mark.parametrize("wait", [0.0, 6.0])
def test_an_unavailable_database(
    trouble: Trouble, wait: float, harness: ProcessHarness, proxy: TcpProxy
) -> None:
    cluster = harness.start_cluster(**ENV, DATABASE_URL=proxy.database_url)
    wait_until(lambda: find_role_process("engine", cluster), "a worker plays the engine")
    proxy.set_trouble(trouble)
    time.sleep(wait)
    stop_in_time(cluster)


@pytest.mark.parametrize("command", ["poll_timers", "dispatch_outbox"])
@pytest.mark.chaos
def test_a_standalone_role(command: str, harness: ProcessHarness) -> None:
    program = harness.start_command(command, command, **ENV)
    time.sleep(4)
    with hold_locks(harness):
        time.sleep(1)
        stop_in_time(program)

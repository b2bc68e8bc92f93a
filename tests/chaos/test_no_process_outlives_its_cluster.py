"""A3: when the main process of a cluster is killed, all others end within seconds, and what they know is recorded."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from contextlib import ExitStack

import pytest

from eventservice.runtime.models import Slot
from eventservice.runtime.worker import ROLES
from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from orchestration.states import Delivery, Status
from tests.database_clock import allow_for_load
from tests.database_locks import hold_locks
from tests.process_harness import (
    ProcessHarness,
    Program,
    RecordingTarget,
    build_call,
    find_children,
    find_role_process,
    is_living,
    list_group,
    report,
    submit_calls,
    wait_until,
    wait_until_all_ended,
)

# The grace of an orphan, and the time that its sentinel gives the others.
PROMISED = allow_for_load(12.0)
# Attempts that take no longer end, and are recorded.
BRIEF = "/delay/1.5"


class Orphans:
    """A cluster at work, whose processes lose their main process."""

    def __init__(self, harness: ProcessHarness) -> None:
        self.harness = harness
        self.tenant = create_tenant("acme").tenant_id
        self.target: RecordingTarget = harness.start_target()
        self.cluster: Program = harness.start_cluster()
        wait_until(lambda: find_role_process("engine", self.cluster), "a worker plays the engine")
        self.sentinel = next(iter(find_children(self.cluster.pid)))

    def submit(self, path: str, count: int = 5) -> list[str]:
        return submit_calls(
            build_call(self.tenant, f"{self.target.url}{path}", delivery=delivery)
            for delivery in Delivery
            for _ in range(count)
        )

    def wait_until_gone(self) -> None:
        started_at = time.monotonic()
        wait_until(lambda: not list_group(self.cluster.pid), "all processes have ended", 60)
        took = time.monotonic() - started_at
        report(f"all processes had ended after {took:.1f} s")
        assert took <= PROMISED


@pytest.fixture
def orphans(harness: ProcessHarness) -> Orphans:
    return Orphans(harness)


def test_the_processes_of_a_killed_cluster_end_and_record_what_they_know(orphans: Orphans) -> None:
    first = orphans.submit(BRIEF)
    wait_until(lambda: orphans.target.list_call_ids() == set(first), "the attempts are in flight")
    orphans.cluster.kill()
    time.sleep(1.0)
    later = orphans.submit("/ok")
    orphans.wait_until_gone()
    assert orphans.target.list_call_ids() == set(first)
    outcomes = ServiceCall.objects.for_tenant(orphans.tenant).filter(service_call_id__in=first)
    assert set(outcomes.values_list("status", "attempt")) == {(Status.SUCCEEDED, 1)}
    slots = Slot.objects.values_list("owner_id", "lease_until")
    assert [(owner, until is None) for owner, until in slots] == [(None, False)] * len(ROLES)

    following = orphans.harness.start_cluster()
    wait_until_all_ended()
    orphans.harness.stop(following)
    assert set(Slot.objects.values_list("owner_id", "lease_until")) == {(None, None)}
    assert {call: len(sent) for call, sent in orphans.target.group_by_call().items()} == dict.fromkeys(
        [*first, *later], 1
    )


@pytest.mark.chaos
def test_the_processes_of_a_killed_sentinel_end_with_the_main_process(orphans: Orphans) -> None:
    submitted = orphans.submit(BRIEF)
    wait_until(lambda: orphans.target.list_call_ids() == set(submitted), "the attempts are in flight")
    os.kill(orphans.sentinel, signal.SIGKILL)
    orphans.wait_until_gone()
    assert orphans.cluster.wait() == 1
    outcomes = ServiceCall.objects.for_tenant(orphans.tenant).values_list("status", "attempt")
    assert set(outcomes) == {(Status.SUCCEEDED, 1)}


@pytest.mark.chaos
def test_main_process_and_sentinel_are_killed_at_once(orphans: Orphans) -> None:
    orphans.submit("/hang")
    os.kill(orphans.sentinel, signal.SIGKILL)
    orphans.cluster.kill()
    orphans.wait_until_gone()


@pytest.mark.chaos
def test_the_database_is_locked_meanwhile(orphans: Orphans) -> None:
    submitted = orphans.submit("/hang")
    wait_until(lambda: orphans.target.list_call_ids() == set(submitted), "the attempts are in flight")
    with hold_locks(orphans.harness):
        time.sleep(1.0)
        orphans.cluster.kill()
        orphans.wait_until_gone()


@pytest.mark.chaos
def test_a_frozen_worker_ends_with_its_sentinel(orphans: Orphans) -> None:
    """A frozen process watches nothing: the sentinel kills it."""
    engine = wait_until(lambda: find_role_process("engine", orphans.cluster), "a worker plays the engine")
    os.kill(engine, signal.SIGSTOP)
    orphans.cluster.kill()
    orphans.wait_until_gone()


@pytest.mark.chaos
@pytest.mark.parametrize("delay", [0.2, 0.5, 0.8, 1.1, 1.4, 2.0])
def test_the_main_process_is_killed_while_the_cluster_starts(delay: float, harness: ProcessHarness) -> None:
    cluster = harness.start_cluster()
    time.sleep(delay)
    cluster.kill()
    started_at = time.monotonic()
    wait_until(lambda: not list_group(cluster.pid), "all processes have ended", 60)
    assert time.monotonic() - started_at <= PROMISED


@pytest.mark.chaos
def test_a_cluster_under_the_supervisor_ends_with_it(harness: ProcessHarness) -> None:
    ports = find_free_ports(2)
    up = harness.start_command("up", "up", "--port", ports[0], "--target-port", ports[1])
    wait_until(lambda: "role_acquired" in up.log, "the cluster works")
    # Web and two workers, target, and the six of the cluster.
    wait_until(lambda: len(find_descendants(up.pid)) >= 10, "all processes have started")
    everything = find_descendants(up.pid)
    up.kill()
    started_at = time.monotonic()
    wait_until(lambda: not any(is_living(pid) for pid in everything), "all processes have ended", 60)
    report(f"all processes had ended after {time.monotonic() - started_at:.1f} s")


def test_web_workers_end_with_their_main_process(harness: ProcessHarness) -> None:
    """Otherwise they would keep the port, and the next main process could not start."""
    (port,) = find_free_ports(1)
    command = [
        sys.executable, "-m", "gunicorn", "-c", "python:eventservice.runtime.gunicorn_config", "eventservice.wsgi",
        "--bind", f"127.0.0.1:{port}", "--workers", "2",
    ]  # fmt: skip
    web = harness.start("web", command)
    wait_until(lambda: len(find_children(web.pid)) == 2, "the workers have started")
    time.sleep(1.0)
    web.kill()
    wait_until(lambda: not list_group(web.pid), "all processes have ended", allow_for_load(12.0))


def find_free_ports(count: int) -> list[str]:
    with ExitStack() as sockets:
        found = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [str(each.getsockname()[1]) for each in found]


def find_descendants(pid: int) -> list[int]:
    children = find_children(pid)
    return children + [each for child in children for each in find_descendants(child)]

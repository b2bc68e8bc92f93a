"""Plain `manage.py qcluster`, as every user of django-q2 starts it, runs the system, and no stop loses anything."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.test import Client

from eventservice.tenants.directory import create_tenant
from eventservice.tenants.keys import create_key
from eventservice.tenants.models import ApiKey
from orchestration.models import ServiceCall
from orchestration.states import Status
from outbox.publishers.webhook.endpoints import create_endpoint
from tests.database_clock import allow_for_load
from tests.process_harness import (
    ProcessHarness,
    Program,
    RecordingTarget,
    build_call,
    find_children,
    find_role_process,
    list_group,
    submit_calls,
    wait_until,
    wait_until_all_ended,
)

SHUTDOWN_SECONDS = 10
STOPS_WITHIN = allow_for_load(SHUTDOWN_SECONDS + 10.0)
HOOK = "/hook"
# The sentinel, two workers, pusher and monitor.
PROCESSES = 5


class System:
    """A tenant with a webhook endpoint, a target, and clusters started by `manage.py qcluster`."""

    def __init__(self, harness: ProcessHarness) -> None:
        self.harness = harness
        self.tenant_id: UUID = create_tenant("acme").tenant_id
        self.target: RecordingTarget = harness.start_target()
        create_endpoint(self.tenant_id, f"{self.target.url}{HOOK}")
        self._key = create_key(self.tenant_id, list(ApiKey.Scope), name="test")[1]

    def start(self, *options: str, **env: str) -> Program:
        cluster = self.harness.start_command(
            "qcluster", "qcluster", *options, SHUTDOWN_SECONDS=str(SHUTDOWN_SECONDS), **env
        )
        wait_until(
            lambda: find_role_process("engine", cluster) or find_role_process("dispatcher", cluster),
            "a worker has a role",
        )
        return cluster

    def submit_over_http(self, path: str) -> str:
        body = {"name": "call", "requestSpec": {"method": "POST", "url": f"{self.target.url}{path}"}}
        response: Any = Client(headers={"Authorization": f"Bearer {self._key}"}).post(
            f"/api/v1/tenants/{self.tenant_id}/service-calls", body, content_type="application/json"
        )
        assert response.status_code == 202, response.content
        return str(response.json()["serviceCallId"])

    def submit(self, path: str, count: int) -> list[str]:
        return submit_calls(build_call(self.tenant_id, f"{self.target.url}{path}") for _ in range(count))

    def count_requests(self, path: str) -> Counter[str]:
        return Counter(request.call_id for request in self.target.list_requests() if request.path == path)

    def count_webhooks(self) -> int:
        return sum(request.path == HOOK for request in self.target.list_requests())

    def wait_until_in_flight(self, path: str, calls: list[str]) -> None:
        wait_until(lambda: self.count_requests(path).keys() >= set(calls), "the attempts are in flight")

    def list_outcomes(self) -> set[tuple[str, int]]:
        return set(ServiceCall.objects.for_tenant(self.tenant_id).values_list("status", "attempt"))


@pytest.fixture
def system(harness: ProcessHarness) -> System:
    return System(harness)


def wait_until_gone(cluster: Program, seconds: float = STOPS_WITHIN) -> int:
    begun = time.monotonic()
    status = cluster.wait(120)
    wait_until(lambda: not list_group(cluster.pid), "all processes have ended")
    assert time.monotonic() - begun <= seconds
    return status


def terminate(cluster: Program) -> None:
    cluster.terminate()


def interrupt(cluster: Program) -> None:
    os.kill(cluster.pid, signal.SIGINT)


def terminate_group(cluster: Program) -> None:
    os.killpg(cluster.pid, signal.SIGTERM)


def interrupt_group(cluster: Program) -> None:
    os.killpg(cluster.pid, signal.SIGINT)


def test_a_call_fires_its_event_is_dispatched_and_a_stop_loses_nothing(system: System) -> None:
    cluster = system.start()
    first = system.submit_over_http("/ok")
    wait_until(system.count_webhooks, "the event reaches the webhook endpoint")
    wait_until_all_ended()
    later = system.submit_over_http("/delay/1")
    system.wait_until_in_flight("/delay/1", [later])

    terminate_group(cluster)

    assert wait_until_gone(cluster) == 0
    assert system.list_outcomes() == {(Status.SUCCEEDED, 1)}
    assert system.count_requests("/ok") == {first: 1}
    assert system.count_requests("/delay/1") == {later: 1}


@pytest.mark.chaos
@pytest.mark.parametrize("stop", [terminate, interrupt, terminate_group, interrupt_group])
def test_attempts_in_flight_are_recorded_by_a_stop(system: System, stop: Callable[[Program], None]) -> None:
    cluster = system.start()
    calls = system.submit("/delay/2", 50)
    system.wait_until_in_flight("/delay/2", calls)
    stop(cluster)
    assert wait_until_gone(cluster) == 0
    assert system.list_outcomes() == {(Status.SUCCEEDED, 1)}
    assert system.count_requests("/delay/2") == dict.fromkeys(calls, 1)


@pytest.mark.chaos
@pytest.mark.parametrize("victim", ["main", "sentinel"])
def test_a_killed_process_ends_the_cluster_and_the_next_one_continues(system: System, victim: str) -> None:
    cluster = system.start()
    (sentinel,) = find_children(cluster.pid)
    brief = system.submit("/delay/1.5", 20)
    system.wait_until_in_flight("/delay/1.5", brief)
    os.kill(cluster.pid if victim == "main" else sentinel, signal.SIGKILL)
    later = system.submit("/ok", 20)
    assert wait_until_gone(cluster) != 0

    following = system.start()
    wait_until_all_ended()
    system.harness.stop(following)
    assert system.list_outcomes() == {(Status.SUCCEEDED, 1)}
    assert system.count_requests("/delay/1.5") == dict.fromkeys(brief, 1)
    assert system.count_requests("/ok") == dict.fromkeys(later, 1)


@pytest.mark.chaos
@pytest.mark.parametrize("role", ["engine", "dispatcher"])
def test_a_killed_worker_is_replaced_and_nothing_is_lost(system: System, role: str) -> None:
    cluster = system.start()
    victim = wait_until(lambda: find_role_process(role, cluster), f"a worker plays the {role}")
    calls = system.submit("/delay/1.5", 20)
    system.wait_until_in_flight("/delay/1.5", calls)
    os.kill(victim, signal.SIGKILL)
    wait_until_all_ended()
    wait_until(lambda: find_role_process(role, cluster) not in (None, victim), "the worker is replaced")
    terminate_group(cluster)
    assert wait_until_gone(cluster) == 0
    assert {status for status, _ in system.list_outcomes()} == {Status.SUCCEEDED}
    assert system.count_requests("/delay/1.5").keys() == set(calls)


@pytest.mark.chaos
@pytest.mark.parametrize("names", [("", ""), ("blue", "green")], ids=["one name", "two names"])
def test_two_clusters_on_one_database_send_each_call_once(system: System, names: tuple[str, str]) -> None:
    clusters = [
        system.harness.start_command("qcluster", "qcluster", *(["-n", name] if name else []))
        for name in names
    ]
    engines = 2 if all(names) else 1
    wait_until(
        lambda: sum(bool(find_role_process("engine", each)) for each in clusters) == engines,
        "the engines have their roles",
    )
    for cluster in clusters:
        wait_until(lambda: len(cluster.list_children()) >= PROCESSES, "all processes run")  # noqa: B023
    calls = [call for _ in range(5) for call in system.submit("/ok", 40)]
    wait_until_all_ended()
    for cluster in clusters:
        terminate_group(cluster)
    assert [wait_until_gone(cluster) for cluster in clusters] == [0, 0]
    assert system.count_requests("/ok") == dict.fromkeys(calls, 1)
    assert system.list_outcomes() == {(Status.SUCCEEDED, 1)}


@pytest.mark.chaos
def test_run_once_processes_what_is_due_and_ends(system: System) -> None:
    calls = system.submit("/ok", 5)
    once = system.harness.start_command("once", "qcluster", "--run-once")
    assert once.wait() == 0, once.log
    assert system.list_outcomes() == {(Status.SUCCEEDED, 1)}
    assert system.count_requests("/ok") == dict.fromkeys(calls, 1)
    assert system.count_webhooks() > 0

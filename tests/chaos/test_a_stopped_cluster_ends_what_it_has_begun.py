"""P4 under django-q2: on SIGTERM, attempts in flight end and are recorded, and the next cluster goes on with the chains."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from orchestration.states import Status
from tests.process_harness import (
    ProcessHarness,
    Program,
    build_call,
    submit_calls,
    wait_until,
    wait_until_all_ended,
)


def terminate_main_process(cluster: Program) -> None:
    cluster.terminate()


def terminate_all_processes(cluster: Program) -> None:
    """Send SIGTERM to the whole process group, as systemd does."""
    os.killpg(cluster.pid, signal.SIGTERM)


@pytest.mark.parametrize(
    "stop", [terminate_main_process, terminate_all_processes], ids=lambda stop: stop.__name__
)
def test_a_stopped_cluster_ends_what_it_has_begun(
    stop: Callable[[Program], None], harness: ProcessHarness
) -> None:
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    submitted = submit_calls(build_call(tenant, f"{target.url}/delay/2") for _ in range(20))
    cluster = harness.start_cluster()
    wait_until(lambda: target.list_call_ids() == set(submitted), "the attempts are in flight")

    stop(cluster)
    assert cluster.wait() == 0

    outcomes = ServiceCall.objects.for_tenant(tenant).values_list("status", "attempt")
    assert set(outcomes) == {(Status.SUCCEEDED, 1)}
    assert cluster.list_children() == []

    later = submit_calls(build_call(tenant, f"{target.url}/ok") for _ in range(20))
    following = harness.start_cluster()
    wait_until_all_ended()
    harness.stop(following)
    assert {name: [request.attempt for request in sent] for name, sent in target.group_by_call().items()} == {
        name: [1] for name in [*submitted, *later]
    }


def test_an_attempt_may_outlast_a_slice_while_its_cluster_stops(harness: ProcessHarness) -> None:
    """An attempt may take up to SHUTDOWN_SECONDS, although django-q2 would kill a slice that takes so long."""
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    submitted = submit_calls([build_call(tenant, f"{target.url}/delay/9")])
    cluster = harness.start_cluster(
        SLICE_SECONDS="1",
        DB_LOCK_SECONDS="1",
        DB_STATEMENT_SECONDS="2",
        DB_CONNECT_SECONDS="2",
        SHUTDOWN_SECONDS="30",
    )
    wait_until(lambda: target.list_call_ids() == set(submitted), "the attempt is in flight")

    cluster.terminate()
    assert cluster.wait() == 0

    outcomes = ServiceCall.objects.for_tenant(tenant).values_list("status", "attempt")
    assert set(outcomes) == {(Status.SUCCEEDED, 1)}

"""P4, under django-q2. SIGTERM: attempts in flight end and are recorded, and the next cluster finds the chains."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from orchestration.states import Status
from tests.process_harness import Program, Stage, accept, call, until, until_all_have_ended


def itself(cluster: Program) -> None:
    cluster.terminate()


def all_its_processes(cluster: Program) -> None:
    """As systemd does."""
    os.killpg(cluster.pid, signal.SIGTERM)


@pytest.mark.parametrize("stop", [itself, all_its_processes], ids=lambda stop: stop.__name__)
def test_a_stopped_cluster_ends_what_it_has_begun(stop: Callable[[Program], None], stage: Stage) -> None:
    witness, tenant = stage.witness(), create_tenant("acme").tenant_id
    begun = accept(call(tenant, f"{witness.url}/delay/2") for _ in range(20))
    cluster = stage.cluster()
    until(lambda: witness.calls() == set(begun), "the attempts are in flight")

    stop(cluster)
    assert cluster.wait() == 0

    outcomes = ServiceCall.objects.for_tenant(tenant).values_list("status", "attempt")
    assert set(outcomes) == {(Status.SUCCEEDED, 1)}
    assert cluster.children() == []

    later = accept(call(tenant, f"{witness.url}/ok") for _ in range(20))
    following = stage.cluster()
    until_all_have_ended()
    stage.stop(following)
    assert {name: [one.attempt for one in sent] for name, sent in witness.by_call().items()} == {
        name: [1] for name in [*begun, *later]
    }


def test_an_attempt_may_outlast_a_slice_while_its_cluster_stops(stage: Stage) -> None:
    """Up to SHUTDOWN_SECONDS; django-q would end a slice that lasts longer than it may."""
    witness, tenant = stage.witness(), create_tenant("acme").tenant_id
    begun = accept([call(tenant, f"{witness.url}/delay/9")])
    cluster = stage.cluster(SLICE_SECONDS="1", DB_LOCK_SECONDS="1", SHUTDOWN_SECONDS="30")
    until(lambda: witness.calls() == set(begun), "the attempt is in flight")

    cluster.terminate()
    assert cluster.wait() == 0

    outcomes = ServiceCall.objects.for_tenant(tenant).values_list("status", "attempt")
    assert set(outcomes) == {(Status.SUCCEEDED, 1)}

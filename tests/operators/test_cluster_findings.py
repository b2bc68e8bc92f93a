"""The diagnosis of clusters: who stands by for which role, which cluster has ended, and since when a role is missing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import settings

from eventservice.kernel.findings import Finding
from eventservice.kernel.ids import new_id
from eventservice.operators.health import FORGOTTEN_AFTER, TAKEOVER_MARGIN, check_cluster, read_cluster
from eventservice.runtime.models import Slot
from eventservice.runtime.slots import RoleLease
from outbox.models import OutboxPartition
from timers.membership import NODE_LEASE
from timers.models import Node, NodeRole, TimerShard

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

LEASE = timedelta(seconds=8)
HOUR = timedelta(hours=1)


@pytest.fixture
def now(at_noon: datetime) -> datetime:
    return at_noon


def create_node(now: datetime, role: NodeRole, cluster: str = "blue", **given: Any) -> Node:
    values = {"hostname": "host-1", "process_id": 11, "started_at": now - HOUR, "lease_until": now + LEASE}
    return Node.objects.create(owner_id=new_id(), role=role, cluster=cluster, **{**values, **given})


def create_slot(role: str, taken_at: datetime, lease_until: datetime | None, cluster: str = "blue") -> None:
    owner_id = new_id() if lease_until else None
    Slot.objects.create(
        name=f"{cluster}/{role}", taken_at=taken_at, owner_id=owner_id, lease_until=lease_until
    )


def diagnose(now: datetime) -> dict[str, Finding]:
    return {finding.code: finding for finding in check_cluster(read_cluster(now, Slot.objects.all()))}


def run_cluster(now: datetime, cluster: str = "blue") -> None:
    for role in (NodeRole.ENGINE, NodeRole.DISPATCHER):
        create_node(now, role, cluster)
        create_slot(role.value, now, now + LEASE, cluster)


def test_a_standby_is_named_with_what_it_waits_for_and_until_when(now: datetime) -> None:
    run_cluster(now)
    for process_id in (21, 22):
        create_node(now, NodeRole.STANDBY, hostname="host-2", process_id=process_id)
    finding = diagnose(now)["standby"]
    assert finding.is_ok
    assert finding.text.startswith("2 workers of cluster blue stand by on host-2: ")
    until = f"{now + LEASE:%H:%M:%S} UTC"
    for role in ("engine", "dispatcher"):
        assert f"{role} held by host-1 (process 11) until {until}" in finding.text
    assert "CLUSTER_NAME" in finding.remedy


def test_clusters_of_different_names_stand_by_for_nothing(now: datetime) -> None:
    run_cluster(now, "blue")
    run_cluster(now, "green")
    assert "standby" not in diagnose(now)


def test_a_role_that_nobody_has_taken_yet_is_free(now: datetime) -> None:
    run_cluster(now)
    create_node(now, NodeRole.STANDBY)
    Slot.objects.filter(name="blue/engine").update(owner_id=None, lease_until=None)
    assert "engine free" in diagnose(now)["standby"].text


def test_while_the_engine_is_missing_the_standby_is_named_as_its_successor(now: datetime) -> None:
    run_cluster(now)
    Node.objects.filter(role=NodeRole.ENGINE).update(lease_until=now - HOUR)
    create_node(now, NodeRole.STANDBY)
    finding = diagnose(now)["engine"]
    assert not finding.is_ok
    until = f"{now + LEASE + TAKEOVER_MARGIN:%H:%M:%S} UTC"
    assert finding.remedy.startswith(f"Wait until {until}: 1 standby worker waiting: one takes over.")


def test_while_a_running_cluster_replaces_its_engine_the_instruction_is_to_wait(now: datetime) -> None:
    run_cluster(now)
    Node.objects.filter(role=NodeRole.ENGINE).update(lease_until=now - timedelta(seconds=1))
    findings = diagnose(now)
    until = (
        now - timedelta(seconds=1) - NODE_LEASE + timedelta(seconds=settings.FROZEN_SECONDS) + TAKEOVER_MARGIN
    )
    assert findings["engine"].remedy.startswith(
        f"Wait until {until:%H:%M:%S} UTC: the cluster blue is running and replaces it. If it has not by then, restart"
    )
    assert findings["dead_node"].remedy == "“No engine is running” says what to do."
    Node.objects.filter(role=NodeRole.ENGINE).update(lease_until=now - HOUR)
    assert diagnose(now)["engine"].remedy == (
        "Restart the cluster blue, which is running and has not replaced it."
    )


def test_a_role_that_ran_without_a_cluster_has_been_missing_since_its_leases_were_released(
    now: datetime,
) -> None:
    create_slot("engine", now - 2 * HOUR, None)
    create_slot("dispatcher", now - 2 * HOUR, None)
    TimerShard.objects.create(shard_id=1, updated_at=now - 3 * HOUR)
    TimerShard.objects.create(shard_id=2, updated_at=now - HOUR)
    OutboxPartition.objects.update_or_create(partition=3, defaults={"updated_at": now - HOUR})
    findings = diagnose(now)
    for role in ("engine", "dispatcher"):
        assert f"since {now - HOUR:%Y-%m-%d %H:%M:%S} UTC (1 h)" in findings[role].text
    assert findings["engine"].remedy == "Start one with `manage.py cluster` (or `manage.py poll_timers`)."


def test_a_missing_role_has_a_beginning(now: datetime) -> None:
    run_cluster(now)
    Node.objects.all().delete()
    Slot.objects.update(taken_at=now - HOUR, owner_id=None, lease_until=None)
    assert f"since {now - HOUR:%Y-%m-%d %H:%M:%S} UTC (1 h)" in diagnose(now)["engine"].text
    Slot.objects.all().delete()
    create_node(now, NodeRole.DISPATCHER, "", lease_until=now - 2 * HOUR)
    findings = diagnose(now)
    assert f"since {now - 2 * HOUR:%Y-%m-%d %H:%M:%S} UTC (2 h)" in findings["dispatcher"].text
    assert "since" not in findings["engine"].text


def test_a_cluster_that_was_killed_is_named_while_another_works(now: datetime) -> None:
    run_cluster(now, "green")
    create_slot("engine", now - 3 * HOUR, now - 3 * HOUR)
    create_slot("dispatcher", now - 3 * HOUR, now - 3 * HOUR)
    findings = diagnose(now)
    finding = findings["stopped_cluster"]
    assert f"The cluster blue has not run since {now - 3 * HOUR:%Y-%m-%d %H:%M:%S} UTC (3 h)" in finding.text
    assert "`CLUSTER_NAME=blue manage.py cluster`" in finding.remedy
    assert "stalled_chain" not in findings


def test_a_cluster_whose_processes_gave_their_roles_back_after_a_crash_is_named(now: datetime) -> None:
    run_cluster(now, "green")
    create_slot("engine", now - HOUR, None)
    lease = RoleLease(new_id())
    assert lease.acquire("blue/engine")
    lease.release(crashed=True)
    assert "stopped_cluster" in diagnose(now)
    # Another process can take the role over at once.
    following = RoleLease(new_id())
    assert following.acquire("blue/engine")
    following.release()
    assert "stopped_cluster" not in diagnose(now)


def test_a_cluster_that_was_stopped_or_given_up_is_not_reported(now: datetime) -> None:
    run_cluster(now, "green")
    create_slot("engine", now - HOUR, None)  # stopped gracefully
    create_slot("engine", now - FORGOTTEN_AFTER, now - FORGOTTEN_AFTER, "given up")
    assert {"stopped_cluster", "stalled_chain"}.isdisjoint(diagnose(now))
    assert [role.cluster for role in read_cluster(now, Slot.objects.order_by("name")).roles] == [
        "blue",
        "green",
        "green",
    ]


def test_a_chain_of_a_running_cluster_that_has_stalled_is_reported(now: datetime) -> None:
    run_cluster(now)
    Slot.objects.filter(name="blue/engine").update(taken_at=now - HOUR)
    finding = diagnose(now)["stalled_chain"]
    assert "blue/engine has stalled" in finding.text
    assert f"since {now - HOUR:%Y-%m-%d %H:%M:%S} UTC (1 h)" in finding.text


def test_roles_that_run_as_processes_of_their_own_have_no_chains(now: datetime) -> None:
    for role in (NodeRole.ENGINE, NodeRole.DISPATCHER):
        create_node(now, role, cluster="")
    create_slot("engine", now - HOUR, None)
    assert "stalled_chain" not in diagnose(now)


def test_a_dead_standby_held_nothing(now: datetime) -> None:
    run_cluster(now)
    create_node(now, NodeRole.STANDBY, lease_until=now - HOUR)
    finding = diagnose(now)["dead_node"]
    assert finding.text.startswith(
        "The standby worker on host-1 (process 11) has stopped sending heartbeats."
    )
    assert f"since {now - HOUR:%Y-%m-%d %H:%M:%S} UTC (1 h)" in finding.text
    assert finding.remedy.startswith("It held nothing.")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


def lose_engine(now: datetime, process_id: int, hostname: str) -> str:
    """Return what is to be done when the last engine has sent no heartbeat for an hour."""
    create_node(
        now,
        NodeRole.ENGINE,
        lease_until=now - HOUR,
        process_id=process_id,
        hostname=hostname,
        started_at=datetime.now(tz=UTC) + HOUR,
    )
    return diagnose(now)["engine"].remedy


def test_a_frozen_engine_is_to_be_resumed_or_ended(now: datetime, process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    remedy = lose_engine(now, process.pid, socket.gethostname())
    assert f"Process {process.pid} on {socket.gethostname()}" in remedy
    assert "is stopped" in remedy
    assert "kill -CONT" in remedy


def test_an_engine_that_hangs_is_to_be_ended(now: datetime, process: subprocess.Popen[bytes]) -> None:
    assert "hangs or cannot reach the database" in lose_engine(now, process.pid, socket.gethostname())


def test_an_engine_that_was_killed_is_to_be_started(now: datetime, process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    remedy = lose_engine(now, process.pid, socket.gethostname())
    assert "has crashed or was killed" in remedy
    assert remedy.endswith("Start one with `manage.py cluster` (or `manage.py poll_timers`).")


def test_of_an_engine_on_another_host_both_are_possible(now: datetime) -> None:
    assert "If it still exists, it is frozen or cannot reach" in lose_engine(now, 11, "host-1")

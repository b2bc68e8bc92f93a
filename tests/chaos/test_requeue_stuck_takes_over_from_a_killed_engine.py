"""`manage.py requeue_stuck` frees what a killed engine held, without any engine."""

from __future__ import annotations

import socket

import pytest

from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from tests.process_harness import ProcessHarness, build_call, submit_calls, wait_until, wait_until_at_work
from timers.models import Node, TimerShard

pytestmark = pytest.mark.chaos


def test_requeue_stuck_takes_over_from_a_killed_engine(harness: ProcessHarness) -> None:
    target = harness.start_target()
    engine = harness.start_engine()
    wait_until_at_work(engine)
    submit_calls([build_call(create_tenant("acme").tenant_id, f"{target.url}/delay/60")])
    wait_until(target.count_requests, "the call is running")
    engine.kill()
    wait_until(lambda: Node.objects.dead().exists(), "its lease has ended")

    command = harness.start_command("requeue_stuck", "requeue_stuck")

    assert command.wait() == 0, command.log
    for expected in (
        f"No heartbeat from the engine on {socket.gethostname()}",
        f"(process {engine.pid})",
        "Declared dead: the engine on",
        "Resolved 1 call.",
        "No engine is running, so no call is sent. Start one with `manage.py cluster`.",
    ):
        assert expected in command.log
    assert not Node.objects.exists()
    assert not TimerShard.objects.exclude(owner_id=None).exists()
    assert [call.status for call in ServiceCall.across_tenants.all()] == ["Scheduled"]

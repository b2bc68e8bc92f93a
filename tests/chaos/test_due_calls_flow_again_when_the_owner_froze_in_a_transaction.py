"""P4: a frozen engine holds locks on the very rows that another engine needs, until the database ends its transaction."""

from __future__ import annotations

import pytest
from django.db import connection

from eventservice.tenants.directory import create_tenant
from tests.database_clock import allow_for_load
from tests.process_harness import (
    ProcessHarness,
    Program,
    compute_lateness,
    find_node,
    report,
    submit_steadily,
    wait_until,
    wait_until_all_ended,
    wait_until_at_work,
)
from timers.models import TimerSchedule, TimerShard

PROMISED = allow_for_load(30.0)
MAX_GAP_SECONDS = allow_for_load(2.0)


@pytest.mark.parametrize("point", ["start.before_commit", "finish.before_commit"])
def test_due_calls_flow_again_when_the_owner_froze_in_a_transaction(
    point: str, harness: ProcessHarness
) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite ends no transaction: a process that is frozen inside one blocks all writers")
    target = harness.start_target()
    frozen, other = harness.start_engine(f"{point}=stop@10"), harness.start_engine()
    wait_until_at_work(frozen, other)
    due = submit_steadily(create_tenant("acme").tenant_id, f"{target.url}/ok", per_second=20, seconds=14)
    wait_until(lambda: frozen.is_frozen, "the engine freezes")
    others = list_calls_of(other)
    wait_until_all_ended()
    frozen.thaw()
    harness.stop(frozen, other)

    late = compute_lateness(due, target.group_by_call())
    of_others = max(late[name] for name in others)
    report(f"latest {max(late.values()):.1f} s; of the other engine's own {of_others:.1f} s")
    assert max(late.values()) <= PROMISED
    assert of_others <= MAX_GAP_SECONDS, "the frozen engine has held up the other"


def list_calls_of(engine: Program) -> list[str]:
    shards = TimerShard.objects.filter(owner_id=find_node(engine)).values_list("pk", flat=True)
    timers = TimerSchedule.across_tenants.filter(shard_id__in=list(shards))
    return [str(name) for name in timers.values_list("service_call_id", flat=True)]

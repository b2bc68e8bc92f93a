"""P4. The frozen engine holds locks on the very rows that another needs, until the database ends its transaction."""

from __future__ import annotations

import pytest
from django.db import connection

from eventservice.tenants.directory import create_tenant
from tests.database_clock import promised
from tests.process_harness import (
    Program,
    Stage,
    at_work,
    lateness,
    node_of,
    say,
    steady,
    until,
    until_all_have_ended,
)
from timers.models import TimerSchedule, TimerShard

PROMISED = promised(30.0)
NO_GAP = promised(2.0)


@pytest.mark.parametrize("point", ["start.before_commit", "finish.before_commit"])
def test_due_calls_flow_again_when_the_owner_froze_in_a_transaction(point: str, stage: Stage) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite ends nobody's transaction: a frozen process that is inside one stops all writers")
    witness = stage.witness()
    frozen, other = stage.engine(f"{point}=stop@10"), stage.engine()
    at_work(frozen, other)
    due = steady(create_tenant("acme").tenant_id, f"{witness.url}/ok", per_second=20, seconds=14)
    until(lambda: frozen.frozen, "it freezes")
    others = calls_of(other)
    until_all_have_ended(PROMISED + 15)
    frozen.thaw()
    stage.stop(frozen, other)

    late = lateness(due, witness.by_call())
    of_others = max(late[name] for name in others)
    say(f"latest {max(late.values()):.1f} s; of the other engine's own {of_others:.1f} s")
    assert max(late.values()) <= PROMISED
    assert of_others <= NO_GAP, "one engine's freeze has frozen the other"


def calls_of(engine: Program) -> list[str]:
    shards = TimerShard.objects.filter(owner_id=node_of(engine)).values_list("pk", flat=True)
    timers = TimerSchedule.across_tenants.filter(shard_id__in=list(shards))
    return [str(name) for name in timers.values_list("service_call_id", flat=True)]

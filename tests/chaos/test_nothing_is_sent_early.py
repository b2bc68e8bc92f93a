"""P5. Under a steady load, no request arrives before its call is due by the database's clock."""

from __future__ import annotations

import time

import pytest
from django.db import connection

from eventservice.tenants.directory import create_tenant
from tests.database_clock import running_clock
from tests.process_harness import Stage, at_work, lateness, say, steady, until_all_have_ended

WHOLE = pytest.param(100, 120, id="whole", marks=pytest.mark.chaos)


@pytest.mark.parametrize(("per_second", "seconds"), [pytest.param(20, 8, id="short"), WHOLE])
def test_nothing_is_sent_early(per_second: float, seconds: float, stage: Stage) -> None:
    witness, tenant = stage.witness(), create_tenant("acme").tenant_id
    engine = stage.engine()
    at_work(engine)
    behind = clock_difference()

    due = steady(tenant, f"{witness.url}/ok", per_second, seconds, start_in=1.5)
    until_all_have_ended(seconds + 120)
    stage.stop(engine)

    late = sorted(lateness(due, witness.by_call()).values())
    say(
        f"lateness: p50 {late[len(late) // 2] * 1000:.0f} ms, p99 {late[len(late) * 99 // 100] * 1000:.0f} ms"
    )
    assert late[0] >= -behind


def clock_difference() -> float:
    """How far the database's clock is ahead of the target's, at most: both are of this machine here."""
    asked = time.time()
    told = running_clock().timestamp()
    answered = time.time()
    # SQLite and MariaDB cut off what their clock does not show, and so tell a time that is past.
    ahead = told - answered
    assert told >= asked - 0.002, f"the clock of {connection.vendor} is another than the target's"
    return max(0.0, ahead)

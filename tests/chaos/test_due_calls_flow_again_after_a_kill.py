"""P4. One of two engines is killed: what was due in its shards, and what it had begun, is the other's soon after."""

from __future__ import annotations

import time

from eventservice.tenants.directory import create_tenant
from tests.database_clock import promised
from tests.process_harness import Stage, at_work, lateness, say, steady, until, until_all_have_ended

PROMISED = promised(15.0)


def test_due_calls_flow_again_after_a_kill(stage: Stage) -> None:
    witness = stage.witness()
    killed, other = stage.engine(), stage.engine()
    at_work(killed, other)
    due = steady(create_tenant("acme").tenant_id, f"{witness.url}/delay/0.3", per_second=20, seconds=14)
    until(lambda: witness.count() > 40, "calls flow")

    killed.kill()
    killed_at = time.time()
    until_all_have_ended()
    stage.stop(other)

    sent = witness.by_call()
    latest = max(lateness(due, sent).values())
    repeats = [again.time - killed_at for attempts in sent.values() for again in attempts[1:]]
    say(
        f"latest {latest:.1f} s; {len(repeats)} repeats, the last {max(repeats, default=0):.1f} s after the kill"
    )
    assert latest <= PROMISED
    assert max(repeats, default=0) <= PROMISED
    assert all(len(attempts) <= 2 for attempts in sent.values())

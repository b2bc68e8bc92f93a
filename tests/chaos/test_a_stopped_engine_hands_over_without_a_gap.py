"""P4. SIGTERM: the engine's shards are another's at once, and what it has begun it brings to its end."""

from __future__ import annotations

from eventservice.tenants.directory import create_tenant
from tests.database_clock import promised
from tests.process_harness import Stage, at_work, lateness, say, steady, until, until_all_have_ended

# Shards that are not handed over are another's after NODE_LEASE_SECONDS, which is more in any case.
LONGEST_GAP = promised(2.0)


def test_a_stopped_engine_hands_over_without_a_gap(stage: Stage) -> None:
    witness = stage.witness()
    stopped, other = stage.engine(), stage.engine()
    at_work(stopped, other)
    tenant = create_tenant("acme").tenant_id
    # Of these it has some when it is stopped, and must stay for them.
    due = steady(tenant, f"{witness.url}/delay/5", per_second=20, seconds=0.5, start_in=0.0)
    due |= steady(tenant, f"{witness.url}/delay/0.2", per_second=20, seconds=6)
    until(lambda: witness.count() > 20, "calls flow")

    stopped.terminate()
    until_all_have_ended()

    assert stopped.wait() == 0, stopped.log
    stage.stop(other)
    sent = witness.by_call()
    latest = max(lateness(due, sent).values())
    say(f"latest {latest:.2f} s")
    assert latest <= LONGEST_GAP
    assert all([one.attempt for one in sent[name]] == [1] for name in due)

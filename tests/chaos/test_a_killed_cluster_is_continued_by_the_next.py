"""P4, under django-q2. All of its processes are killed at once, in the middle of their work."""

from __future__ import annotations

from eventservice.tenants.directory import create_tenant
from tests.database_clock import promised
from tests.process_harness import Stage, lateness, say, steady, until, until_all_have_ended

PROMISED = promised(15.0)


def test_a_killed_cluster_is_continued_by_the_next(stage: Stage) -> None:
    witness, tenant = stage.witness(), create_tenant("acme").tenant_id
    killed = stage.cluster()
    due = steady(tenant, f"{witness.url}/delay/0.3", per_second=10, seconds=14, start_in=3)
    until(lambda: witness.count() > 10, "calls flow")

    killed.kill_group()
    following = stage.cluster()
    until_all_have_ended()
    stage.stop(following)

    sent = witness.by_call()
    latest = max(lateness(due, sent).values())
    repeats = [attempts for attempts in sent.values() if len(attempts) > 1]
    say(f"latest {latest:.1f} s; {len(repeats)} repeats")
    assert latest <= PROMISED
    assert all([one.attempt for one in attempts] == [1, 2] for attempts in repeats)

"""P4. The frozen engine holds locks on the very rows that another needs, until the database ends its transaction."""

from __future__ import annotations

import pytest
from django.db import connection

from eventservice.tenants.public import create_tenant
from tests.witness import Stage, at_work, lateness, say, steady, until, until_all_have_ended

PROMISED = 30.0
NOT_TIMED = (
    "psycopg's executemany() ends with a Flush, which disarms PostgreSQL's idle-in-transaction timer"
    " until the next plain statement: kernel.bulk.execute_rows must follow it with one"
)


@pytest.mark.parametrize("point", ["start.before_commit", "finish.before_commit"])
def test_due_calls_flow_again_when_the_owner_froze_in_a_transaction(
    point: str, stage: Stage, request: pytest.FixtureRequest
) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite ends nobody's transaction: a frozen process that is inside one stops all writers")
    if connection.vendor == "postgresql" and point == "finish.before_commit":
        request.applymarker(pytest.mark.xfail(strict=True, reason=NOT_TIMED))
    witness = stage.witness()
    frozen, other = stage.engine(f"{point}=stop@10"), stage.engine()
    at_work(frozen, other)
    due = steady(create_tenant("acme").tenant_id, f"{witness.url}/ok", per_second=20, seconds=14)
    until(lambda: frozen.frozen, "it freezes")
    until_all_have_ended(PROMISED + 15)
    frozen.thaw()
    stage.stop(frozen, other)

    late = lateness(due, witness.by_call())
    say(
        f"latest {max(late.values()):.1f} s; {sum(seconds > 1 for seconds in late.values())} of {len(due)} over 1 s"
    )
    assert max(late.values()) <= PROMISED

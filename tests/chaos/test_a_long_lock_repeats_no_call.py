"""A1: whoever holds a lock of the database for long, no healthy engine is declared frozen, and nothing is sent twice.

The engine works at the default settings. Another process holds SQLite's write lock, or rows and tables elsewhere, for
longer and longer. The target is the witness.
"""

from __future__ import annotations

import time

import pytest
from django.db import connection

from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from orchestration.states import Delivery, Status
from tests.database_locks import hold_locks
from tests.process_harness import (
    ProcessHarness,
    build_call,
    find_role_process,
    report,
    submit_calls,
    wait_until,
    wait_until_all_ended,
)

DEFAULTS = {"SHUTDOWN_SECONDS": "25"}
# Engines were killed 4–8 s after the lock was released.
AFTERMATH_SECONDS = 15
CALLS_PER_SECOND = 2


@pytest.mark.chaos
@pytest.mark.parametrize("seconds", [8, 12, 16, 18, 20, 21, 22, 24, 28, 32, 36, 40])
@pytest.mark.parametrize("kind", ["rows", "tables"])
def test_a_long_lock_repeats_no_call(seconds: int, kind: str, harness: ProcessHarness) -> None:
    if connection.vendor == "sqlite" and kind == "tables":
        pytest.skip("SQLite locks the whole file")
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    cluster = harness.start_cluster(**DEFAULTS)
    engine = wait_until(lambda: find_role_process("engine", cluster), "a worker plays the engine")
    count = CALLS_PER_SECOND * (seconds + AFTERMATH_SECONDS)
    submitted = submit_calls(
        build_call(tenant, f"{target.url}/delay/5", number / CALLS_PER_SECOND, delivery=delivery)
        for number in range(count)
        for delivery in Delivery
    )
    time.sleep(2)
    with hold_locks(harness, kind):
        time.sleep(seconds)
    time.sleep(AFTERMATH_SECONDS)
    wait_until_all_ended()

    sent = target.group_by_call()
    repeated = sum(len(requests) > 1 for requests in sent.values())
    failed = ServiceCall.objects.for_tenant(tenant).filter(status=Status.FAILED).count()
    report(f"{kind} {seconds} s: {repeated} repeated, {failed} failed of {len(submitted)}")
    assert (repeated, failed) == (0, 0)
    assert sent.keys() == set(submitted)
    assert find_role_process("engine", cluster) == engine
    harness.stop(cluster)

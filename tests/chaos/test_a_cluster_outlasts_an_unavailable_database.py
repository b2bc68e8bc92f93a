"""P4 under django-q2: while no ticket can be consumed, the roles stay with their workers, and go on at once afterwards."""

from __future__ import annotations

import time

import pytest
from django.db import transaction

from eventservice.runtime.models import Slot
from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from orchestration.states import Status
from tests.process_harness import (
    ProcessHarness,
    build_call,
    find_role_process,
    submit_calls,
    wait_until,
    wait_until_all_ended,
)

# Longer than a slice may take (1 + 1 + 5 s), and than the sentinel waits for one (3 s more).
OUTAGE_SECONDS = 14.0


@pytest.mark.chaos
def test_calls_flow_again_and_no_worker_is_replaced(harness: ProcessHarness) -> None:
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    cluster = harness.start_cluster(
        SLICE_SECONDS="1", DB_LOCK_SECONDS="1", DB_STATEMENT_SECONDS="2", DB_CONNECT_SECONDS="2"
    )
    engine = wait_until(lambda: find_role_process("engine", cluster), "a worker plays the engine")
    submitted = submit_calls([build_call(tenant, f"{target.url}/delay/3")])
    wait_until(lambda: target.list_call_ids() == set(submitted), "the attempt is in flight")

    with transaction.atomic():
        list(Slot.objects.select_for_update())  # on SQLite this blocks all writes
        time.sleep(OUTAGE_SECONDS)

    later = submit_calls([build_call(tenant, f"{target.url}/ok")])
    wait_until_all_ended()
    assert wait_until(lambda: find_role_process("engine", cluster), "a worker plays the engine") == engine
    assert "chain_restarted" not in cluster.log
    outcomes = ServiceCall.objects.for_tenant(tenant).values_list("status", "attempt")
    assert set(outcomes) == {(Status.SUCCEEDED, 1)}
    harness.stop(cluster)
    assert target.list_call_ids() == {*submitted, *later}

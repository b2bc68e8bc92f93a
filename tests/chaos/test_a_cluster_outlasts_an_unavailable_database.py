"""P4, under django-q2. While nobody can take a ticket the roles stay with their workers, and go on at once after it."""

from __future__ import annotations

import time

import pytest
from django.db import transaction

from eventservice.runtime.models import Slot
from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from orchestration.states import Status
from tests.process_harness import Stage, accept, call, seat_of, until, until_all_have_ended

# Longer than a slice may last (1 + 1 + 5 s), and than the sentinel waits for one (3 s more).
AWAY_SECONDS = 14.0


@pytest.mark.chaos
def test_calls_flow_again_and_no_worker_was_taken_for_frozen(stage: Stage) -> None:
    witness, tenant = stage.witness(), create_tenant("acme").tenant_id
    cluster = stage.cluster(SLICE_SECONDS="1", DB_LOCK_SECONDS="1")
    engine = until(lambda: seat_of("engine", cluster), "a worker has the engine's seat")
    begun = accept([call(tenant, f"{witness.url}/delay/3")])
    until(lambda: witness.calls() == set(begun), "the attempt is in flight")

    with transaction.atomic():
        list(Slot.objects.select_for_update())  # on SQLite: all that is written
        time.sleep(AWAY_SECONDS)

    later = accept([call(tenant, f"{witness.url}/ok")])
    until_all_have_ended()
    assert until(lambda: seat_of("engine", cluster), "the engine has its seat") == engine
    assert "chain_restarted" not in cluster.log
    outcomes = ServiceCall.objects.for_tenant(tenant).values_list("status", "attempt")
    assert set(outcomes) == {(Status.SUCCEEDED, 1)}
    stage.stop(cluster)
    assert witness.calls() == {*begun, *later}

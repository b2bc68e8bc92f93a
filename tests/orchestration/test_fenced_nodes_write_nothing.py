"""A node that was declared dead can record nothing any more."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from django.db.models import F

from eventservice.db.leases import Fenced
from eventservice.db.now import pin_time
from eventservice.kernel.ids import new_id
from execution.models import HttpExecution
from orchestration import lifecycle
from tests.orchestration.support import (
    ManualEngine,
    add_to_noon,
    build_response,
    list_attempts,
    read_all_rows,
    submit,
)
from timers.membership import reap_dead_node
from timers.models import TimerShard

pytestmark = pytest.mark.django_db


def test_its_outcomes_change_no_call_no_event_and_no_log_row(
    manual_engine: ManualEngine, tenant: Any
) -> None:
    service_call_id = submit(tenant)
    started = manual_engine.start_one()
    with pin_time(add_to_noon(60)):
        assert reap_dead_node() == manual_engine.membership.owner_id
    before = read_all_rows()

    with pytest.raises(Fenced):
        manual_engine.finish((started, build_response()))

    assert read_all_rows() == before
    assert list_attempts(tenant, service_call_id)[0].finished_at is None


def test_its_late_outcomes_still_reach_the_attempt_log(manual_engine: ManualEngine, tenant: Any) -> None:
    service_call_id = submit(tenant)
    started = manual_engine.start_one()
    lifecycle.resolve_interrupted([started.key])
    before = read_all_rows()

    assert manual_engine.finish((started, build_response(status=201))) == 0

    assert read_all_rows() == before
    (row,) = list_attempts(tenant, service_call_id)
    assert (row.response_status, row.error_kind) == (201, None)


def test_it_starts_no_call_of_a_lost_shard(manual_engine: ManualEngine, tenant: Any) -> None:
    submit(tenant)
    TimerShard.objects.update(version=F("version") + 1, owner_id=new_id())
    before = read_all_rows()

    with pytest.raises(Fenced):
        manual_engine.start()

    assert read_all_rows() == before
    assert not HttpExecution.across_tenants.exists()


def test_it_goes_on_with_the_shards_it_still_owns(manual_engine: ManualEngine, tenant: Any) -> None:
    submit(tenant)
    mine = manual_engine.poller.claim_due(1)[0].shard_id
    manual_engine.poller.crowded = False
    service_call_id = submit(tenant)
    TimerShard.objects.exclude(pk=mine).update(version=F("version") + 1, owner_id=new_id())
    manual_engine.membership.leases.renew()

    assert list(manual_engine.membership.leases.held) == [mine]
    with transaction.atomic():
        due = manual_engine.poller.claim_due(10)
    assert {timer.shard_id for timer in due} <= {mine}
    assert not list_attempts(tenant, service_call_id)

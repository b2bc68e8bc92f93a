"""A node that another has taken for dead records nothing, however sure of itself it is."""

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
from tests.orchestration.support import Hand, after, everything, log_of, responded, submit
from timers.membership import reap_dead_node
from timers.models import TimerShard

pytestmark = pytest.mark.django_db


def test_its_results_change_neither_call_nor_event_nor_log(hand: Hand, tenant: Any) -> None:
    service_call_id = submit(tenant)
    started = hand.start_one()
    with pin_time(after(60)):
        assert reap_dead_node() == hand.membership.owner_id
    before = everything()

    with pytest.raises(Fenced):
        hand.finish((started, responded()))

    assert everything() == before
    assert log_of(tenant, service_call_id)[0].finished_at is None


def test_its_late_results_are_still_told_by_the_log(hand: Hand, tenant: Any) -> None:
    service_call_id = submit(tenant)
    started = hand.start_one()
    lifecycle.resolve_interrupted([started.key])
    before = everything()

    lifecycle.close_late([(started.key, responded(status=201))])

    assert everything() == before
    (row,) = log_of(tenant, service_call_id)
    assert (row.response_status, row.error_kind) == (201, None)


def test_it_starts_nothing_in_a_shard_that_it_has_lost(hand: Hand, tenant: Any) -> None:
    submit(tenant)
    TimerShard.objects.update(version=F("version") + 1, owner_id=new_id())
    before = everything()

    with pytest.raises(Fenced):
        hand.start()

    assert everything() == before
    assert not HttpExecution.across_tenants.exists()


def test_it_goes_on_in_the_shards_that_are_still_its_own(hand: Hand, tenant: Any) -> None:
    submit(tenant)
    mine = hand.poller.claim_due(1)[0].shard_id
    hand.poller.crowded = False
    service_call_id = submit(tenant)
    TimerShard.objects.exclude(pk=mine).update(version=F("version") + 1, owner_id=new_id())
    hand.membership.leases.renew()

    assert list(hand.membership.leases.held) == [mine]
    with transaction.atomic():
        due = hand.poller.claim_due(10)
    assert {timer.shard_id for timer in due} <= {mine}
    assert not log_of(tenant, service_call_id)

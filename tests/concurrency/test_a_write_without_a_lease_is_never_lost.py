"""Submissions, changes and deletions hold no lease of a shard, and no owner of the shard sweeps away what they write.

The specification describes the race: an owner loads the due timers of its shard, another process inserts one into the same
window of time, and the owner deletes the window, and the new timer with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction

from eventservice.db.leases import Fenced
from eventservice.db.now import db_now
from eventservice.tenants.models import Tenant
from orchestration import lifecycle
from orchestration.lifecycle import cancel, reschedule
from tests.concurrency.races import ROUNDS, race
from tests.orchestration.support import ManualEngine, find_timer, get_status, submit
from timers.models import TimerShard, TimerState


def start_loaded(engine: ManualEngine, between: Callable[[], object]) -> list[Any]:
    """Start what is due, and do something between loading the timers and the commit."""
    with transaction.atomic():
        due = engine.poller.claim_due(100)
        between()
        return lifecycle.start(due, engine.membership.owner_id)


def test_a_timer_that_is_inserted_while_a_batch_is_loaded_stays_scheduled(
    acme: Tenant, elsewhere: Callable[..., Future[Any]]
) -> None:
    engine = ManualEngine()
    loaded = submit(acme)
    submitted: list[Future[Any]] = []

    def insert_into_the_same_window() -> None:
        submitted.append(elsewhere(submit, acme))
        if connection.vendor != "sqlite":  # there the submission waits for the one write lock
            submitted[0].result(30)

    started = start_loaded(engine, insert_into_the_same_window)
    inserted = submitted[0].result(30)

    assert [call.key.service_call_id for call in started] == [loaded]
    timer = find_timer(acme, inserted)
    assert timer is not None
    assert (timer.state, timer.claim_version) == (TimerState.SCHEDULED, None)
    assert engine.start_one().key.service_call_id == inserted


def test_a_timer_that_is_inserted_while_its_shard_changes_hands_is_started_once(acme: Tenant) -> None:
    for _ in range(ROUNDS):
        loser = ManualEngine()
        loaded = submit(acme)
        TimerShard.objects.update(owner_id=None)
        winner, inserted, stale = race(
            ManualEngine, partial(submit, acme), partial(start_unless_fenced, loser)
        )
        late = winner.start()
        started = Counter(call.key.service_call_id for call in [*stale, *late, *winner.start()])
        assert started == Counter([loaded, inserted])
        TimerShard.objects.update(owner_id=None)


@pytest.mark.parametrize("change", ["cancel", "reschedule"])
def test_a_change_needs_no_owner_and_holds_against_one_that_was_frozen(acme: Tenant, change: str) -> None:
    """The owner has looked before the change, and goes on after it, under a lease that it has lost meanwhile."""
    frozen = ManualEngine()
    call = submit(acme)
    assert (frozen.poller.seconds_until_due() or 0.0) <= 0
    if change == "cancel":
        cancel(acme.tenant_id, call)
    else:
        reschedule(acme.tenant_id, call, db_now() + timedelta(days=1))
    TimerShard.objects.update(owner_id=None)
    winner = ManualEngine()

    assert start_unless_fenced(frozen) == winner.start() == []
    timer = find_timer(acme, call)
    if change == "cancel":
        assert (timer, get_status(acme, call)) == (None, "Canceled")
    else:
        assert timer is not None
        assert (timer.state, get_status(acme, call)) == (TimerState.SCHEDULED, "Scheduled")


def start_unless_fenced(engine: ManualEngine) -> list[Any]:
    try:
        return engine.start()
    except Fenced:
        return []

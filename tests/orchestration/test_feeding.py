"""A timer that was taken from a timer store becomes a call under the take's number, and the end of its attempt is marked."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from eventservice.db.now import pin_time
from eventservice.kernel.ids import new_id
from execution.outcome import ErrorKind
from orchestration import lifecycle
from orchestration.lifecycle import timer_marks
from orchestration.lifecycle.feeding import compute_start_before, compute_take_end, feed
from orchestration.lifecycle.timer_marks import Mark
from orchestration.models import ServiceCall
from orchestration.retries import RetryPolicy
from tests.factories import NOON, NamespaceFactory
from tests.orchestration.support import (
    ManualEngine,
    build_error,
    build_response,
    find_timer,
    get_call,
    list_attempts,
    list_event_types,
    list_events,
)
from timers.stores.port import Progress, QualifiedNamespace, Revision, StoredTimer, TimerKey

pytestmark = pytest.mark.django_db

LOOK_AHEAD = timedelta(seconds=5)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
STORE = "fleet"


@pytest.fixture
def namespace(tenant: Any) -> QualifiedNamespace:
    NamespaceFactory(tenant=tenant, name="alerts", store=STORE)
    return QualifiedNamespace(tenant.tenant_id, "alerts")


@pytest.fixture
def timer(namespace: QualifiedNamespace) -> StoredTimer:
    """Return a timer that is due at noon, as it is when it has been taken for the first time."""
    return take(
        StoredTimer(
            TimerKey.build(namespace, "trial-ends", 16),
            Revision(new_id()),
            execute_at=NOON,
            requested_at=NOON,
            created_at=NOON - HOUR,
            callback_url="https://example.com/timers",
            payload={"customer": 42},
            retry_policy=RetryPolicy(max_attempts=3, initial_interval=60.0).to_stored(),
        )
    )


def take(timer: StoredTimer, at: datetime | None = None) -> StoredTimer:
    """Return the row after it was taken, by default when it is due."""
    return replace(
        timer,
        takes=timer.takes + 1,
        taken_until=compute_take_end(timer, at or timer.execute_at, LOOK_AHEAD),
        taken_by="cell",
    )


def apply(timer: StoredTimer, mark: Mark) -> StoredTimer:
    """Return the row after a mark was applied, and delete the mark."""
    assert mark.take == timer.take
    assert mark.next_at is not None
    timer_marks.delete_marks([mark])
    return replace(timer, execute_at=mark.next_at, progress=mark.progress, taken_by=None)


def get_mark() -> Mark:
    (mark,) = timer_marks.list_marks(STORE, 10)
    return mark


def test_a_timer_becomes_a_call_with_its_revision_as_its_id(
    timer: StoredTimer, tenant: Any, manual_engine: ManualEngine
) -> None:
    assert feed(STORE, [timer]) == 1
    call = get_call(tenant, timer.revision)
    assert (call.status, call.due_at, call.submitted_at) == ("Scheduled", NOON, NOON - HOUR)
    assert (call.timer_take, call.start_before) == (1, NOON + 20 * SECOND)
    started = manual_engine.start_one()
    assert started.attempt == 1
    assert started.request.body == {
        "namespace": "alerts", "timerId": "trial-ends", "payload": {"customer": 42},
        "executeAt": "2026-03-01T12:00:00.000Z", "attempt": 1,
    }  # fmt: skip
    assert started.send_by is not None
    assert list_event_types(tenant, timer.revision)[:2] == ["ServiceCallSubmitted", "ServiceCallScheduled"]


def test_feeding_again_under_the_same_take_changes_nothing(
    timer: StoredTimer, tenant: Any, manual_engine: ManualEngine
) -> None:
    feed(STORE, [timer])
    for move in (lambda: None, manual_engine.start):
        move()
        before = get_call(tenant, timer.revision)
        assert feed(STORE, [timer]) == 0
        assert get_call(tenant, timer.revision).next_seq == before.next_seq
    assert timer_marks.list_marks(STORE, 10) == []


def test_a_success_is_marked_for_removal(
    timer: StoredTimer, tenant: Any, manual_engine: ManualEngine
) -> None:
    feed(STORE, [timer])
    started = manual_engine.start_one()
    manual_engine.finish((started, build_response(started)))
    assert get_call(tenant, timer.revision).status == "Succeeded"
    mark = get_mark()
    assert (mark.take, mark.next_at, mark.store) == (timer.take, None, STORE)
    # The row was read before the mark was applied, and after.
    assert feed(STORE, [timer]) == 0
    assert timer_marks.list_marks(STORE, 10) == [mark]
    timer_marks.delete_marks([mark])
    feed(STORE, [take(timer)])
    again = get_mark()
    assert (again.take.number, again.next_at) == (2, None)


def test_a_failure_is_marked_with_the_time_of_the_next_attempt_which_needs_another_take(
    timer: StoredTimer, tenant: Any, manual_engine: ManualEngine
) -> None:
    feed(STORE, [timer])
    started = manual_engine.start_one()
    manual_engine.finish((started, build_error(started)))
    call = get_call(tenant, timer.revision)
    mark = get_mark()
    assert (call.status, call.start_before, call.due_at) == ("Scheduled", None, mark.next_at)
    assert mark.progress == Progress(1, 0, NOON, call.next_seq)
    waiting = find_timer(tenant, timer.revision)
    assert waiting is not None
    assert waiting.state == "Reached"

    retaken = take(apply(timer, mark))
    assert feed(STORE, [retaken]) == 1
    assert get_call(tenant, timer.revision).due_at == mark.next_at
    with pin_time(retaken.execute_at):
        again = manual_engine.start_one()
        assert again.attempt == 2
        manual_engine.finish((again, build_error(again, ErrorKind.TIMEOUT, sent=True)))
    assert get_mark().progress.attempts == 2
    assert [entry.attempt for entry in list_attempts(tenant, timer.revision)] == [1, 2]
    list_events(tenant, timer.revision)


def test_the_retry_policy_counts_failures_and_not_takes(
    timer: StoredTimer, tenant: Any, manual_engine: ManualEngine
) -> None:
    row = replace(timer, takes=6, progress=Progress(attempts=1, interruptions=2))
    feed(STORE, [take(row)])
    assert get_call(tenant, timer.revision).timer_lapses == 3
    started = manual_engine.start_one()
    assert started.attempt == 7
    manual_engine.finish((started, build_error(started)))
    mark = get_mark()
    assert (mark.progress.attempts, mark.progress.interruptions) == (2, 2)
    row = apply(take(row), mark)
    with pin_time(row.execute_at):
        feed(STORE, [take(row)])
        last = manual_engine.start_one()
        manual_engine.finish((last, build_error(last)))
    assert get_call(tenant, timer.revision).status == "Failed"
    assert get_mark().next_at is None


def test_an_interrupted_attempt_waits_for_another_take(
    timer: StoredTimer, tenant: Any, manual_engine: ManualEngine
) -> None:
    feed(STORE, [timer])
    started = manual_engine.start_one()
    lifecycle.resolve_interrupted([started.key])
    assert manual_engine.start() == []
    mark = get_mark()
    assert (mark.next_at, mark.progress.attempts, mark.progress.interruptions) == (NOON, 0, 1)
    feed(STORE, [take(apply(timer, mark))])
    assert manual_engine.start_one().attempt == 2


def test_a_call_that_is_not_started_in_time_waits_for_another_take(
    timer: StoredTimer, tenant: Any, manual_engine: ManualEngine
) -> None:
    feed(STORE, [timer])
    with pin_time(compute_start_before(timer) + timedelta(milliseconds=1)):
        assert manual_engine.start() == []
        mark = get_mark()
        assert (mark.next_at, mark.progress.attempts) == (timer.execute_at, 0)
        assert get_call(tenant, timer.revision).start_before is None
        assert manual_engine.start() == []
        later = compute_start_before(timer) + SECOND
        feed(STORE, [take(apply(timer, mark), later)])
        assert manual_engine.start_one().attempt == 2


def test_a_take_whose_attempt_would_start_too_late_is_released(timer: StoredTimer, tenant: Any) -> None:
    with pin_time(compute_start_before(timer) + SECOND):
        assert feed(STORE, [timer]) == 0
    assert not ServiceCall.objects.for_tenant(tenant.tenant_id).exists()
    mark = get_mark()
    assert (mark.take, mark.next_at, mark.progress) == (timer.take, timer.execute_at, timer.progress)


def test_an_attempt_that_was_not_sent_in_time_counts_as_no_failure(
    timer: StoredTimer, tenant: Any, manual_engine: ManualEngine
) -> None:
    feed(STORE, [timer])
    started = manual_engine.start_one()
    manual_engine.finish((started, build_error(started, ErrorKind.EXPIRED)))
    mark = get_mark()
    assert (mark.next_at, mark.progress.attempts, mark.progress.interruptions) == (NOON, 0, 0)
    feed(STORE, [take(apply(timer, mark))])
    call = get_call(tenant, timer.revision)
    assert (call.attempt, call.timer_lapses) == (1, 1)


def test_a_later_revision_closes_the_waiting_call_of_the_one_before(
    timer: StoredTimer, tenant: Any, manual_engine: ManualEngine
) -> None:
    feed(STORE, [timer])
    started = manual_engine.start_one()
    manual_engine.finish((started, build_error(started)))
    changed = replace(timer, revision=Revision(new_id()))
    assert feed(STORE, [changed]) == 1
    assert get_call(tenant, timer.revision).status == "Canceled"
    assert manual_engine.start_one().key.service_call_id == changed.revision


def test_a_later_revision_waits_for_the_attempt_of_the_one_before(
    timer: StoredTimer, tenant: Any, manual_engine: ManualEngine
) -> None:
    feed(STORE, [timer])
    started = manual_engine.start_one()
    changed = replace(timer, revision=Revision(new_id()))
    assert feed(STORE, [changed]) == 0
    manual_engine.finish((started, build_error(started)))
    # What replaced it is no retry.
    assert get_call(tenant, timer.revision).status == "Canceled"
    assert feed(STORE, [changed]) == 1


def test_a_call_that_was_pruned_is_inserted_anew_and_its_events_go_on(
    timer: StoredTimer, tenant: Any, manual_engine: ManualEngine
) -> None:
    feed(STORE, [timer])
    started = manual_engine.start_one()
    manual_engine.finish((started, build_error(started)))
    mark = get_mark()
    ServiceCall.objects.for_tenant(tenant.tenant_id).all()._raw_delete("default")
    # The database may remember more events than the row.
    stale = replace(apply(timer, mark), progress=replace(mark.progress, next_seq=2))
    feed(STORE, [take(stale)])
    with pin_time(stale.execute_at):
        assert manual_engine.start_one().attempt == 2
    list_events(tenant, timer.revision)


def test_equal_ids_of_two_tenants_are_fed_apart(
    timer: StoredTimer, tenant: Any, intruder: Any, manual_engine: ManualEngine
) -> None:
    NamespaceFactory(tenant=intruder, name="alerts", store=STORE)
    key = TimerKey.build(QualifiedNamespace(intruder.tenant_id, "alerts"), "trial-ends", 16)
    theirs = replace(timer, key=key)
    assert feed(STORE, [timer, theirs]) == 2
    assert {call.key.tenant_id for call in manual_engine.start()} == {tenant.tenant_id, intruder.tenant_id}

"""Ended calls are counted by minute and hour, and counted again until all calls of the minute have ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from eventservice.db.now import pin_time
from eventservice.tenants.models import Tenant
from orchestration.lifecycle import prune_calls
from orchestration.models import CallRollup, HostRollup, RollupMark, ServiceCall
from orchestration.statistics import aggregation, rollup
from orchestration.statistics.aggregation import LATENESS_BUCKETS_MS
from orchestration.statistics.rollup import LATENESS_COLUMNS, forget_rollups, roll_up
from tests.factories import NOON, ServiceCallFactory, set_status

pytestmark = pytest.mark.django_db

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
LONG = 60.0


@pytest.fixture(autouse=True)
def at_half_past(request: Any) -> Iterator[None]:
    """Set the time to the middle of a minute and of an hour."""
    with pin_time(NOON + timedelta(minutes=30, seconds=30)):
        yield


def create_call(
    tenant: Tenant, due_at: datetime, status: str = "Succeeded", late_ms: float = 3, **fields: Any
) -> Any:
    if status not in ("Canceled", "Scheduled"):
        fields.setdefault("started_at", due_at + timedelta(milliseconds=late_ms))
    return ServiceCallFactory(tenant_id=tenant.pk, due_at=due_at, status=status, **fields)


def read_counts(tenant: Tenant, resolution: str = "minute") -> dict[datetime, list[int]]:
    found = CallRollup.objects.for_tenant(tenant.pk).filter(resolution=resolution)
    return {at: counts for at, *counts in found.values_list("starts_at", "succeeded", "failed", "canceled")}


def read_hosts(tenant: Tenant, resolution: str = "minute") -> dict[str, int]:
    found = HostRollup.objects.for_tenant(tenant.pk).filter(resolution=resolution)
    kept: dict[str, int] = defaultdict(int)
    for host, succeeded, failed in found.values_list("host", "succeeded", "failed"):
        kept[host] += succeeded + failed
    return kept


def read_lateness(tenant: Tenant) -> dict[str, int]:
    (row,) = CallRollup.objects.for_tenant(tenant.pk).filter(resolution="minute").values(*LATENESS_COLUMNS)
    return {name: count for name, count in row.items() if count}


def end_call(made: Any, status: str = "Succeeded") -> None:
    calls = ServiceCall.objects.for_tenant(made.tenant_id).filter(service_call_id=made.service_call_id)
    set_status(calls, status, started_at=made.due_at)


def test_calls_count_in_the_minute_they_were_due_and_hours_are_sums(tenant: Tenant) -> None:
    for second in (0, 10, 59):
        create_call(tenant, NOON + timedelta(seconds=second))
    create_call(tenant, NOON + MINUTE, "Failed")
    create_call(tenant, NOON + MINUTE, "Canceled")
    create_call(tenant, NOON - MINUTE, "Failed")
    assert roll_up(LONG)
    assert read_counts(tenant) == {NOON - MINUTE: [0, 1, 0], NOON: [3, 0, 0], NOON + MINUTE: [0, 1, 1]}
    assert read_counts(tenant, "hour") == {NOON - HOUR: [0, 1, 0], NOON: [3, 1, 1]}
    assert read_hosts(tenant, "hour") == {"example.test": 5}


def test_every_bound_of_lateness_has_a_column() -> None:
    assert tuple(f"late_{bound}" for bound in (*LATENESS_BUCKETS_MS, "more")) == LATENESS_COLUMNS
    assert all(bound % 5 == 0 for bound in LATENESS_BUCKETS_MS)


@pytest.mark.parametrize(
    ("late_ms", "column"),
    [
        (0, "late_5"), (-40, "late_5"), (5, "late_5"), (6, "late_10"), (10, "late_10"), (11, "late_25"), (250, "late_250"),
        (9_999, "late_10000"), (60_000, "late_60000"), (60_006, "late_more"), (86_400_000, "late_more"),
    ],
)  # fmt: skip
def test_lateness_counts_under_the_smallest_bound_that_it_keeps(
    tenant: Tenant, late_ms: float, column: str
) -> None:
    create_call(tenant, NOON, late_ms=late_ms)
    roll_up(LONG)
    assert read_lateness(tenant) == {column: 1}


def test_lateness_counts_only_first_attempts_of_calls_that_were_not_canceled(tenant: Tenant) -> None:
    create_call(tenant, NOON, attempt=2)
    create_call(tenant, NOON, "Failed", late_ms=30)
    create_call(tenant, NOON, "Canceled", started_at=NOON, attempt=1)
    roll_up(LONG)
    assert read_lateness(tenant) == {"late_50": 1}


def test_a_call_that_ends_late_counts_in_its_minute_which_then_closes(tenant: Tenant) -> None:
    slow, waiting = (
        create_call(tenant, NOON, "Running"),
        create_call(tenant, NOON + MINUTE, "Scheduled"),
    )
    create_call(tenant, NOON)
    roll_up(LONG)
    assert read_counts(tenant) == {NOON: [1, 0, 0], NOON + MINUTE: [0, 0, 0]}
    end_call(slow)
    with pin_time(NOON + HOUR):
        roll_up(LONG)
        assert read_counts(tenant) == {NOON: [2, 0, 0], NOON + MINUTE: [0, 0, 0]}
        assert read_counts(tenant, "hour") == {NOON: [2, 0, 0]}
        end_call(waiting, "Failed")
        roll_up(LONG)
        assert read_counts(tenant, "hour") == {NOON: [2, 1, 0]}
        assert not CallRollup.objects.for_tenant(tenant.pk).filter(resolution="minute", is_open=True).exists()


def test_a_minute_does_not_wait_for_a_call_that_was_rescheduled(tenant: Tenant) -> None:
    again = create_call(tenant, NOON, "Running")
    create_call(tenant, NOON)
    roll_up(LONG)
    assert CallRollup.objects.for_tenant(tenant.pk).filter(is_open=True).exists()
    calls = ServiceCall.objects.for_tenant(tenant.pk).filter(service_call_id=again.service_call_id)
    set_status(calls, "Scheduled", due_at=NOON + 3 * HOUR)
    with pin_time(NOON + HOUR):
        roll_up(LONG)
    assert not CallRollup.objects.for_tenant(tenant.pk).filter(resolution="minute", is_open=True).exists()


def test_the_current_minute_is_counted_so_far(tenant: Tenant) -> None:
    present = NOON + timedelta(minutes=30)
    create_call(tenant, present)
    roll_up(LONG)
    create_call(tenant, present + timedelta(seconds=20))
    roll_up(LONG)
    assert read_counts(tenant) == {present: [2, 0, 0]}
    with pin_time(present + timedelta(minutes=1, seconds=5)):
        create_call(tenant, present + timedelta(seconds=59))
        roll_up(LONG)
        assert read_counts(tenant) == {present: [3, 0, 0]}


def test_a_second_round_with_nothing_new_changes_nothing(tenant: Tenant) -> None:
    create_call(tenant, NOON)
    roll_up(LONG)
    version = RollupMark.objects.for_tenant(tenant.pk).get().version
    with pin_time(NOON + HOUR):
        roll_up(LONG)
    mark = RollupMark.objects.for_tenant(tenant.pk).get()
    assert (mark.version, mark.counted_until) == (version, NOON + HOUR)


def test_calls_from_before_the_first_round_are_counted_for_a_month(tenant: Tenant) -> None:
    for days in (2, 29, 31):
        create_call(tenant, NOON - timedelta(days=days), "Failed")
    roll_up(LONG)
    assert read_counts(tenant) == {}
    assert sorted(read_counts(tenant, "hour")) == [NOON - timedelta(days=29), NOON - timedelta(days=2)]


def test_a_call_that_ends_after_days_counts_in_its_hour(tenant: Tenant) -> None:
    stuck = create_call(tenant, NOON, "Running")
    roll_up(LONG)
    with pin_time(NOON + timedelta(days=3)):
        roll_up(LONG)
        roll_up(LONG)
        assert read_counts(tenant) == {}
        end_call(stuck)
        roll_up(LONG)
        assert read_counts(tenant, "hour") == {NOON: [1, 0, 0]}
        roll_up(LONG)
        assert not CallRollup.objects.for_tenant(tenant.pk).filter(is_open=True).exists()


def test_minutes_are_kept_for_a_day_and_hours_for_ninety(tenant: Tenant) -> None:
    create_call(tenant, NOON)
    roll_up(LONG)
    with pin_time(NOON + timedelta(days=80)):
        roll_up(LONG)
        roll_up(LONG)
        assert read_counts(tenant) == {}
        assert read_counts(tenant, "hour") == {NOON: [1, 0, 0]}
    with pin_time(NOON + timedelta(days=91)):
        roll_up(LONG)
        assert read_counts(tenant, "hour") == {}
        assert read_hosts(tenant, "hour") == {}


def test_retention_of_calls_keeps_the_rollups(tenant: Tenant) -> None:
    create_call(tenant, NOON, finished_at=NOON)
    create_call(tenant, NOON + timedelta(minutes=29), finished_at=NOON)
    roll_up(LONG)
    with pin_time(NOON + HOUR):
        assert prune_calls(timedelta(minutes=10), 100) == 2
        roll_up(LONG)
        assert read_counts(tenant, "hour") == {NOON: [2, 0, 0]}
        assert sum(sum(counts) for counts in read_counts(tenant).values()) == 2


def test_a_round_that_runs_out_of_time_is_continued_by_the_next(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollup, "CHUNK_CALLS", 3)
    for minute in range(40):
        create_call(tenant, NOON - timedelta(minutes=minute))
        create_call(tenant, NOON - timedelta(days=1 + minute))
    rounds = 1
    while not roll_up(0.0):
        rounds += 1
    assert rounds > 3
    assert len(read_counts(tenant)) == 41
    assert read_counts(tenant, "hour")[NOON] == [1, 0, 0]
    assert sum(sum(counts) for counts in read_counts(tenant, "hour").values()) == 40 + 29


def test_a_round_that_is_overtaken_by_another_writes_nothing(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_call(tenant, NOON)
    counted = aggregation.count_ended_calls

    def meanwhile(*args: Any) -> Any:
        found = counted(*args)
        monkeypatch.setattr(rollup, "count_ended_calls", counted)
        create_call(tenant, NOON + MINUTE)
        assert roll_up(LONG)
        return found

    monkeypatch.setattr(rollup, "count_ended_calls", meanwhile)
    roll_up(LONG)
    assert read_counts(tenant) == {NOON: [1, 0, 0], NOON + MINUTE: [1, 0, 0]}


def test_each_tenant_has_its_own_rollups(tenant: Tenant, intruder: Tenant) -> None:
    create_call(tenant, NOON)
    create_call(intruder, NOON, "Failed")
    roll_up(LONG)
    assert read_counts(tenant) == {NOON: [1, 0, 0]}
    assert read_counts(intruder) == {NOON: [0, 1, 0]}


def test_the_hosts_with_the_most_failures_or_calls_are_kept(tenant: Tenant) -> None:
    for number in range(60):
        create_call(tenant, NOON, host=f"host-{number}")
    for _ in range(2):
        create_call(tenant, NOON, host="busy")
        create_call(tenant, NOON, "Failed", host="broken")
    roll_up(LONG)
    for resolution in ("minute", "hour"):
        kept = read_hosts(tenant, resolution)
        assert len(kept) <= 2 * rollup.MAX_RANKED_HOSTS
        assert (kept["busy"], kept["broken"]) == (2, 2)
    assert read_counts(tenant) == {NOON: [62, 2, 0]}


def test_calls_written_into_the_past_are_counted_after_forgetting_the_rollups(tenant: Tenant) -> None:
    roll_up(LONG)
    create_call(tenant, NOON - timedelta(hours=5))
    create_call(tenant, NOON - timedelta(days=5))
    forget_rollups(tenant.pk)
    roll_up(LONG)
    assert sorted(read_counts(tenant, "hour")) == [NOON - timedelta(days=5), NOON - timedelta(hours=5)]


def test_minutes_that_come_again_when_the_clock_is_set_back_are_counted_again(tenant: Tenant) -> None:
    late = NOON + timedelta(hours=2)
    with pin_time(late):
        roll_up(LONG)
    create_call(tenant, NOON + timedelta(minutes=31))
    with pin_time(NOON + timedelta(minutes=33)):
        roll_up(LONG)
    assert read_counts(tenant) == {NOON + timedelta(minutes=31): [1, 0, 0]}

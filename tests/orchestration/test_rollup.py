"""What has become of calls is counted by minute and hour, once it is final, and as far as it is known before."""

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
from tests.conftest import NOON
from tests.factories import ServiceCallFactory

pytestmark = pytest.mark.django_db

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
LONG = 60.0


@pytest.fixture(autouse=True)
def at_half_past(request: Any) -> Iterator[None]:
    """Within a minute, and within an hour."""
    with pin_time(NOON + timedelta(minutes=30, seconds=30)):
        yield


def call(
    tenant: Tenant, due_at: datetime, status: str = "Succeeded", late_ms: float = 3, **fields: Any
) -> Any:
    ended = (
        {"started_at": due_at + timedelta(milliseconds=late_ms), "attempt": 1} if status != "Canceled" else {}
    )
    return ServiceCallFactory(tenant_id=tenant.pk, due_at=due_at, status=status, **{**ended, **fields})


def rows(tenant: Tenant, resolution: str = "minute") -> dict[datetime, list[int]]:
    found = CallRollup.objects.for_tenant(tenant.pk).filter(resolution=resolution)
    return {at: counts for at, *counts in found.values_list("starts_at", "succeeded", "failed", "canceled")}


def hosts(tenant: Tenant, resolution: str = "minute") -> dict[str, int]:
    found = HostRollup.objects.for_tenant(tenant.pk).filter(resolution=resolution)
    kept: dict[str, int] = defaultdict(int)
    for host, succeeded, failed in found.values_list("host", "succeeded", "failed"):
        kept[host] += succeeded + failed
    return kept


def late(tenant: Tenant) -> dict[str, int]:
    (row,) = CallRollup.objects.for_tenant(tenant.pk).filter(resolution="minute").values(*LATENESS_COLUMNS)
    return {name: count for name, count in row.items() if count}


def end(made: Any, status: str = "Succeeded") -> None:
    ServiceCall.objects.for_tenant(made.tenant_id).filter(service_call_id=made.service_call_id).update(
        status=status, started_at=made.due_at, attempt=1
    )


def test_calls_are_counted_by_the_minute_in_which_they_were_due_and_hours_are_the_sum(tenant: Tenant) -> None:
    for second in (0, 10, 59):
        call(tenant, NOON + timedelta(seconds=second))
    call(tenant, NOON + MINUTE, "Failed")
    call(tenant, NOON + MINUTE, "Canceled")
    call(tenant, NOON - MINUTE, "Failed")
    assert roll_up(LONG)
    assert rows(tenant) == {NOON - MINUTE: [0, 1, 0], NOON: [3, 0, 0], NOON + MINUTE: [0, 1, 1]}
    assert rows(tenant, "hour") == {NOON - HOUR: [0, 1, 0], NOON: [3, 1, 1]}
    assert hosts(tenant, "hour") == {"example.test": 5}


def test_the_bounds_are_those_of_the_statistics() -> None:
    assert tuple(f"late_{bound}" for bound in (*LATENESS_BUCKETS_MS, "more")) == LATENESS_COLUMNS
    assert all(bound % 5 == 0 for bound in LATENESS_BUCKETS_MS)


@pytest.mark.parametrize(
    ("late_ms", "column"),
    [
        (0, "late_5"), (-40, "late_5"), (5, "late_5"), (6, "late_10"), (10, "late_10"), (11, "late_25"), (250, "late_250"),
        (9_999, "late_10000"), (60_000, "late_60000"), (60_006, "late_more"), (86_400_000, "late_more"),
    ],
)  # fmt: skip
def test_lateness_falls_under_the_bound_that_it_keeps(tenant: Tenant, late_ms: float, column: str) -> None:
    call(tenant, NOON, late_ms=late_ms)
    roll_up(LONG)
    assert late(tenant) == {column: 1}


def test_lateness_is_told_of_first_attempts_that_came_to_an_end_of_their_own(tenant: Tenant) -> None:
    call(tenant, NOON, attempt=2)
    call(tenant, NOON, "Failed", late_ms=30)
    call(tenant, NOON, "Canceled", started_at=NOON, attempt=1)
    roll_up(LONG)
    assert late(tenant) == {"late_50": 1}


def test_a_call_that_ends_late_is_counted_to_its_minute_which_then_closes(tenant: Tenant) -> None:
    slow, waiting = call(tenant, NOON, "Running"), call(tenant, NOON + MINUTE, "Scheduled", attempt=0)
    call(tenant, NOON)
    roll_up(LONG)
    assert rows(tenant) == {NOON: [1, 0, 0], NOON + MINUTE: [0, 0, 0]}
    end(slow)
    with pin_time(NOON + HOUR):
        roll_up(LONG)
        assert rows(tenant) == {NOON: [2, 0, 0], NOON + MINUTE: [0, 0, 0]}
        assert rows(tenant, "hour") == {NOON: [2, 0, 0]}
        end(waiting, "Failed")
        roll_up(LONG)
        assert rows(tenant, "hour") == {NOON: [2, 1, 0]}
        assert not CallRollup.objects.for_tenant(tenant.pk).filter(resolution="minute", is_open=True).exists()


def test_a_call_that_moved_to_another_time_is_waited_for_no_longer(tenant: Tenant) -> None:
    again = call(tenant, NOON, "Running")
    call(tenant, NOON)
    roll_up(LONG)
    assert CallRollup.objects.for_tenant(tenant.pk).filter(is_open=True).exists()
    ServiceCall.objects.for_tenant(tenant.pk).filter(service_call_id=again.service_call_id).update(
        status="Scheduled", due_at=NOON + 3 * HOUR
    )
    with pin_time(NOON + HOUR):
        roll_up(LONG)
    assert not CallRollup.objects.for_tenant(tenant.pk).filter(resolution="minute", is_open=True).exists()


def test_the_present_minute_is_counted_as_far_as_it_is(tenant: Tenant) -> None:
    present = NOON + timedelta(minutes=30)
    call(tenant, present)
    roll_up(LONG)
    call(tenant, present + timedelta(seconds=20))
    roll_up(LONG)
    assert rows(tenant) == {present: [2, 0, 0]}
    with pin_time(present + timedelta(minutes=1, seconds=5)):
        call(tenant, present + timedelta(seconds=59))
        roll_up(LONG)
        assert rows(tenant) == {present: [3, 0, 0]}


def test_a_second_round_without_news_changes_nothing(tenant: Tenant) -> None:
    call(tenant, NOON)
    roll_up(LONG)
    version = RollupMark.objects.for_tenant(tenant.pk).get().version
    with pin_time(NOON + HOUR):
        roll_up(LONG)
    mark = RollupMark.objects.for_tenant(tenant.pk).get()
    assert (mark.version, mark.counted_until) == (version, NOON + HOUR)


def test_what_was_there_before_the_first_round_is_counted_back_to_a_month(tenant: Tenant) -> None:
    for days in (2, 29, 31):
        call(tenant, NOON - timedelta(days=days), "Failed")
    roll_up(LONG)
    assert rows(tenant) == {}
    assert sorted(rows(tenant, "hour")) == [NOON - timedelta(days=29), NOON - timedelta(days=2)]


def test_a_call_that_ends_after_days_is_counted_to_its_hour(tenant: Tenant) -> None:
    stuck = call(tenant, NOON, "Running")
    roll_up(LONG)
    with pin_time(NOON + timedelta(days=3)):
        roll_up(LONG)
        roll_up(LONG)
        assert rows(tenant) == {}
        end(stuck)
        roll_up(LONG)
        assert rows(tenant, "hour") == {NOON: [1, 0, 0]}
        roll_up(LONG)
        assert not CallRollup.objects.for_tenant(tenant.pk).filter(is_open=True).exists()


def test_minutes_are_kept_a_day_and_hours_ninety(tenant: Tenant) -> None:
    call(tenant, NOON)
    roll_up(LONG)
    with pin_time(NOON + timedelta(days=80)):
        roll_up(LONG)
        roll_up(LONG)
        assert rows(tenant) == {}
        assert rows(tenant, "hour") == {NOON: [1, 0, 0]}
    with pin_time(NOON + timedelta(days=91)):
        roll_up(LONG)
        assert rows(tenant, "hour") == {}
        assert hosts(tenant, "hour") == {}


def test_retention_of_calls_takes_no_figures_away(tenant: Tenant) -> None:
    call(tenant, NOON, finished_at=NOON)
    call(tenant, NOON + timedelta(minutes=29), finished_at=NOON)
    roll_up(LONG)
    with pin_time(NOON + HOUR):
        assert prune_calls(timedelta(minutes=10), 100) == 2
        roll_up(LONG)
        assert rows(tenant, "hour") == {NOON: [2, 0, 0]}
        assert sum(sum(counts) for counts in rows(tenant).values()) == 2


def test_a_round_that_had_no_time_is_continued_by_the_next(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollup, "CHUNK_CALLS", 3)
    for minute in range(40):
        call(tenant, NOON - timedelta(minutes=minute))
        call(tenant, NOON - timedelta(days=1 + minute))
    rounds = 1
    while not roll_up(0.0):
        rounds += 1
    assert rounds > 3
    assert len(rows(tenant)) == 41
    assert rows(tenant, "hour")[NOON] == [1, 0, 0]
    assert sum(sum(counts) for counts in rows(tenant, "hour").values()) == 40 + 29


def test_a_round_that_another_has_overtaken_writes_nothing(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(tenant, NOON)
    counted = aggregation.count_ended_calls

    def meanwhile(*args: Any) -> Any:
        found = counted(*args)
        monkeypatch.setattr(rollup, "count_ended_calls", counted)
        call(tenant, NOON + MINUTE)
        assert roll_up(LONG)
        return found

    monkeypatch.setattr(rollup, "count_ended_calls", meanwhile)
    roll_up(LONG)
    assert rows(tenant) == {NOON: [1, 0, 0], NOON + MINUTE: [1, 0, 0]}


def test_each_tenant_has_its_own_figures(tenant: Tenant, intruder: Tenant) -> None:
    call(tenant, NOON)
    call(intruder, NOON, "Failed")
    roll_up(LONG)
    assert rows(tenant) == {NOON: [1, 0, 0]}
    assert rows(intruder) == {NOON: [0, 1, 0]}


def test_of_many_hosts_those_stay_that_fail_or_are_busy(tenant: Tenant) -> None:
    for number in range(60):
        call(tenant, NOON, host=f"host-{number}")
    for _ in range(2):
        call(tenant, NOON, host="busy")
        call(tenant, NOON, "Failed", host="broken")
    roll_up(LONG)
    for resolution in ("minute", "hour"):
        kept = hosts(tenant, resolution)
        assert len(kept) <= 2 * rollup.MAX_RANKED_HOSTS
        assert (kept["busy"], kept["broken"]) == (2, 2)
    assert rows(tenant) == {NOON: [62, 2, 0]}


def test_what_was_written_into_the_past_is_found_by_a_recount(tenant: Tenant) -> None:
    roll_up(LONG)
    call(tenant, NOON - timedelta(hours=5))
    call(tenant, NOON - timedelta(days=5))
    forget_rollups(tenant.pk)
    roll_up(LONG)
    assert sorted(rows(tenant, "hour")) == [NOON - timedelta(days=5), NOON - timedelta(hours=5)]

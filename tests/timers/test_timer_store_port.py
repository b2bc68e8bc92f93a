"""The values that cross the port to timer stores. The vectors may never change: stored timers could not be found again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from tests.contracts.timer_stores.base import ALERTS, INTRUDER, NOW, TENANT, build_timer
from timers.stores.port import (
    MAX_STORED_NAMESPACE_LENGTH,
    MAX_TIMER_ID_LENGTH,
    QualifiedNamespace,
    TimerKey,
    TimerRefused,
    compute_namespace_uuid,
    compute_timer_uuid,
    round_up,
)

VECTORS = [
    (ALERTS, "order-1", "722b330a-9d01-6672-5191-b44cc1f67006", 9, 3033),
    (ALERTS, "Ünïcode ☕", "931cb544-6972-6db3-554b-42500f7fa46d", 1, 3105),
    (QualifiedNamespace(INTRUDER, "alerts"), "order-1", "aea34a0b-d2e5-d57d-1904-52f3b4aebffe", 10, 3130),
    (QualifiedNamespace(TENANT, "a:b"), "c", "31c17a83-9a60-09a4-e5df-fe0de3af8a59", 11, 2699),
]


@pytest.mark.parametrize(("namespace", "timer_id", "expected", "of_16", "of_4096"), VECTORS)
def test_known_timers_keep_their_uuids_and_shards(
    namespace: QualifiedNamespace, timer_id: str, expected: str, of_16: int, of_4096: int
) -> None:
    assert str(compute_timer_uuid(namespace, timer_id)) == expected
    assert TimerKey.build(namespace, timer_id, 16).shard == of_16
    key = TimerKey.build(namespace, timer_id, 4096)
    assert (key.shard, str(key.uuid)) == (of_4096, expected)


def test_a_known_namespace_keeps_its_uuid() -> None:
    assert str(compute_namespace_uuid(ALERTS)) == "b3f938ac-967a-1b0a-ca8f-38cf981bf16a"


def test_equal_ids_of_two_tenants_have_different_uuids() -> None:
    assert compute_timer_uuid(ALERTS, "a") != compute_timer_uuid(QualifiedNamespace(INTRUDER, "alerts"), "a")


def test_a_qualified_namespace_is_parsed_from_its_text() -> None:
    assert str(ALERTS) == f"{TENANT}/alerts"
    assert QualifiedNamespace.parse(str(ALERTS)) == ALERTS


@pytest.mark.parametrize(
    ("microseconds", "expected"), [(0, 0), (1, 1000), (999, 1000), (1000, 1000), (999_001, 1_000_000)]
)
def test_times_are_rounded_up_to_milliseconds(microseconds: int, expected: int) -> None:
    assert round_up(NOW + timedelta(microseconds=microseconds)) == NOW + timedelta(microseconds=expected)


def test_times_are_converted_to_utc() -> None:
    local = datetime(2026, 3, 1, 14, tzinfo=timezone(timedelta(hours=2)))
    assert round_up(local).tzinfo is UTC
    assert round_up(local) == NOW


@pytest.mark.parametrize(
    "time",
    [NOW + timedelta(microseconds=1), NOW.replace(tzinfo=None), NOW.astimezone(timezone(timedelta(hours=2)))],
)
def test_a_timer_has_only_times_that_are_stored_exactly(time: datetime) -> None:
    with pytest.raises(ValueError, match="rounded up to milliseconds"):
        build_timer(execute_at=time)


@pytest.mark.parametrize("timer_id", ["", "x" * (MAX_TIMER_ID_LENGTH + 1)])
def test_an_id_that_no_store_can_hold_is_refused(timer_id: str) -> None:
    with pytest.raises(TimerRefused, match=r"^id: a timer id has 1 to 255 characters"):
        TimerKey.build(ALERTS, timer_id, 16)


def test_a_namespace_that_no_store_can_hold_is_refused() -> None:
    fitting = QualifiedNamespace(TENANT, "n" * MAX_STORED_NAMESPACE_LENGTH)
    assert len(str(fitting)) == 255
    with pytest.raises(TimerRefused, match=r"^namespace: .* 1 to 218 characters, not 219"):
        replace(fitting, name=fitting.name + "n")


def test_a_timer_is_taken_until_the_take_ends() -> None:
    timer = build_timer(taken_until=NOW, taken_by="cell-a", takes=1)
    assert timer.is_taken(NOW - timedelta(milliseconds=1))
    assert not timer.is_taken(NOW)
    # Postponed by a cell that could not judge it.
    assert not replace(timer, taken_by=None).is_taken(NOW - timedelta(milliseconds=1))

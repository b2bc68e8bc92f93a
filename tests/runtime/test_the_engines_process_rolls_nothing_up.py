"""The cluster counts the figures for charts each minute, but not in the engine's process, whose calls must be in time."""

from __future__ import annotations

from typing import Any

import pytest

from eventservice.runtime import cluster
from eventservice.runtime.cluster import MAX_ROLL_UP_HANDOVERS, roll_up_calls
from eventservice.runtime.slots import slot_name
from eventservice.runtime.worker import Worker


@pytest.fixture
def actions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record what was rolled up, and what was handed over to another worker."""
    found: list[Any] = []
    monkeypatch.setattr(cluster, "roll_up", found.append)
    monkeypatch.setattr(cluster, "measure_storage", lambda seconds: None)
    monkeypatch.setattr(cluster, "measure_shard_sizes", lambda seconds: None)
    monkeypatch.setattr(cluster, "async_task", lambda task, handovers: found.append((task, handovers)))
    return found


def play(monkeypatch: pytest.MonkeyPatch, role: str | None) -> None:
    worker = Worker()
    worker.lease.slot = role and slot_name(role)
    monkeypatch.setattr(cluster, "current_worker", lambda: worker)


@pytest.mark.parametrize("role", ["dispatcher", None])
def test_a_worker_that_is_not_the_engine_rolls_up(
    monkeypatch: pytest.MonkeyPatch, actions: list[Any], role: str | None
) -> None:
    play(monkeypatch, role)
    roll_up_calls()
    assert actions == [cluster.ROLL_UP_SECONDS]


def test_the_engine_hands_it_over_to_the_other_worker(
    monkeypatch: pytest.MonkeyPatch, actions: list[Any]
) -> None:
    play(monkeypatch, "engine")
    roll_up_calls()
    assert actions == [(roll_up_calls, 1)]


def test_an_engine_that_is_alone_rolls_up_in_the_end(
    monkeypatch: pytest.MonkeyPatch, actions: list[Any]
) -> None:
    play(monkeypatch, "engine")
    roll_up_calls(MAX_ROLL_UP_HANDOVERS)
    assert actions == [cluster.ROLL_UP_SECONDS]

"""The figures for charts are counted in the cluster each minute, but not in the process that must be in time."""

from __future__ import annotations

from typing import Any

import pytest

from eventservice.runtime import cluster
from eventservice.runtime.cluster import MOST_PASSED_ON, roll_up_calls, slot_name


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was rolled up, and what was passed on."""
    found: list[Any] = []
    monkeypatch.setattr(cluster, "roll_up", found.append)
    monkeypatch.setattr(cluster, "async_task", lambda task, passed_on: found.append((task, passed_on)))
    return found


def seated(monkeypatch: pytest.MonkeyPatch, role: str | None) -> None:
    worker = cluster.Worker()
    worker.seat = role and slot_name(role)
    monkeypatch.setattr(cluster, "worker", lambda: worker)


@pytest.mark.parametrize("role", ["dispatcher", None])
def test_a_worker_that_is_not_the_engine_counts(
    monkeypatch: pytest.MonkeyPatch, done: list[Any], role: str | None
) -> None:
    seated(monkeypatch, role)
    roll_up_calls()
    assert done == [cluster.ROLL_UP_SECONDS]


def test_the_engine_leaves_it_to_the_other_worker(monkeypatch: pytest.MonkeyPatch, done: list[Any]) -> None:
    seated(monkeypatch, "engine")
    roll_up_calls()
    assert done == [(roll_up_calls, 1)]


def test_an_engine_that_is_alone_counts_in_the_end(monkeypatch: pytest.MonkeyPatch, done: list[Any]) -> None:
    seated(monkeypatch, "engine")
    roll_up_calls(MOST_PASSED_ON)
    assert done == [cluster.ROLL_UP_SECONDS]

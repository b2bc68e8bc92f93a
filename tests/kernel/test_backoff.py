"""Delays grow with consecutive failures, are spread, and never exceed their maximum."""

from __future__ import annotations

import random

import pytest

from eventservice.kernel.backoff import equal_jitter, full_jitter


@pytest.fixture(autouse=True)
def max_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make chance return its maximum."""
    monkeypatch.setattr(random, "random", lambda: 1.0)
    monkeypatch.setattr(random, "uniform", lambda least, most: most)


@pytest.mark.parametrize(("failures", "seconds"), [(1, 5), (2, 10), (3, 20), (4, 30), (10**6, 30)])
def test_a_delay_doubles_up_to_the_maximum(failures: int, seconds: float) -> None:
    assert full_jitter(failures, 5, 30) == equal_jitter(failures, 5, 30) == seconds


@pytest.mark.parametrize(("multiplier", "third"), [(1, 5), (1.5, 11.25), (3, 30), (10**400, 30)])
def test_another_factor_is_possible(multiplier: float, third: float) -> None:
    assert full_jitter(3, 5, 30, multiplier) == third


def test_full_jitter_begins_at_zero_and_equal_jitter_at_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.0)
    monkeypatch.setattr(random, "uniform", lambda least, most: least)
    assert (full_jitter(2, 5, 30), equal_jitter(2, 5, 30)) == (0, 5)

"""Retries are bounded in number, in time and in each delay."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestration.retries import RetryPolicy
from tests.factories import NOON
from tests.orchestration.support import add_to_noon

seconds = st.floats(min_value=0, max_value=1e7)
policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 1000),
    max_attempts_duration=st.none() | seconds,
    initial_interval=seconds,
    backoff_multiplier=st.floats(min_value=1, max_value=1e300) | st.integers(1, 10**400),
    max_interval=seconds,
)


def compute_delays(policy: RetryPolicy, failures: int = 1, times: int = 300, **given: Any) -> list[float]:
    dues = [
        policy.compute_next_at(NOON, failures=failures, first_started_at=NOON, **given) for _ in range(times)
    ]
    return [(due - NOON).total_seconds() for due in dues if due is not None]


@settings(deadline=None, max_examples=300)
@given(policy=policies, failures=st.integers(0, 2000), not_before=st.none() | st.floats(0, 86_400))
def test_the_next_attempt_is_always_within_the_policys_bounds(
    policy: RetryPolicy, failures: int, not_before: float | None
) -> None:
    due = policy.compute_next_at(
        NOON, failures=failures, first_started_at=add_to_noon(-5), not_before=not_before
    )
    if due is None:
        return
    assert failures < policy.max_attempts
    wait = (due - NOON).total_seconds()
    assert (not_before or 0) - 1e-5 <= wait <= max(policy.max_interval, not_before or 0) + 1e-5
    if policy.max_attempts_duration is not None:
        assert wait <= policy.max_attempts_duration - 5 + 1e-5


@given(policy=policies)
def test_a_policy_is_stored_and_read_without_loss(policy: RetryPolicy) -> None:
    assert RetryPolicy.from_stored(json.loads(json.dumps(policy.to_stored()))) == policy


def test_by_default_a_call_has_one_attempt() -> None:
    assert RetryPolicy.from_stored(None) == RetryPolicy()
    assert compute_delays(RetryPolicy()) == []


def test_there_are_as_many_attempts_as_the_policy_allows() -> None:
    policy = RetryPolicy(max_attempts=3)
    assert [len(compute_delays(policy, failures, times=1)) for failures in (1, 2, 3, 4)] == [1, 1, 0, 0]


@pytest.mark.parametrize(("failures", "ceiling"), [(1, 10), (2, 30), (3, 90), (4, 100), (50, 100)])
def test_the_delay_is_random_up_to_a_growing_bound(failures: int, ceiling: float) -> None:
    policy = RetryPolicy(max_attempts=99, initial_interval=10, backoff_multiplier=3, max_interval=100)
    spread = compute_delays(policy, failures)
    assert 0 <= min(spread) < 0.1 * ceiling
    assert 0.9 * ceiling < max(spread) <= ceiling


def test_retry_after_is_the_minimum_delay() -> None:
    policy = RetryPolicy(max_attempts=2, initial_interval=10)
    assert set(compute_delays(policy, not_before=500.0)) == {500.0}
    assert max(compute_delays(policy, not_before=1.0)) > 1.0
    assert min(compute_delays(policy, not_before=1.0)) == 1.0


def test_no_attempt_is_due_after_the_maximum_duration() -> None:
    policy = RetryPolicy(max_attempts=9, initial_interval=0, max_attempts_duration=60)
    assert compute_delays(policy, not_before=60.0, times=1) == [60.0]
    assert compute_delays(policy, not_before=60.001) == []


def test_the_maximum_duration_counts_from_the_first_attempt() -> None:
    policy = RetryPolicy(max_attempts=9, initial_interval=0, max_attempts_duration=60)
    late = NOON + timedelta(seconds=61)
    assert policy.compute_next_at(late, failures=1, first_started_at=NOON) is None
    assert policy.compute_next_at(late, failures=1, first_started_at=add_to_noon(10)) == late

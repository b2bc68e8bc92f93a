"""A callback decides by its body: done, again by the policy, or again at the time that it names."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.outcome_rules import (
    MAX_DELAY,
    Failure,
    RetryTerms,
    Success,
    Verdict,
    compute_next_attempt,
    judge,
)
from orchestration.retries import RetryPolicy
from orchestration.states import Delivery, ResponseContract
from tests.conftest import NOON
from tests.orchestration.support import build_response


def answered(body: Any) -> Verdict:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return judge(ResponseContract.CALLBACK, build_response(body=raw), NOON)


def failed(body: Any) -> Failure:
    verdict = answered(body)
    assert isinstance(verdict, Failure)
    assert verdict.retryable
    assert verdict.meta["errorMeta"]["kind"] == "Rejected"
    return verdict


@pytest.mark.parametrize(
    "body", [{"ok": True}, {"ok": True, "nextExecuteAt": "2027-01-01T00:00:00Z"}], ids=str
)
def test_ok_is_done(body: Any) -> None:
    assert isinstance(answered(body), Success)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"ok",
        b"{",
        b"\xff\xfe\xff",
        b"[" * 100_000,
        b'{"a":' * 5_000,
        b"9" * 10_000,
        [],
        "ok",
        None,
        True,
        {},
        {"ok": None},
        {"ok": 1},
        {"ok": "true"},
        {"OK": True},
        [{"ok": True}],
    ],
    ids=lambda body: str(body)[:20],
)
def test_what_is_not_an_answer_is_tried_again_by_the_policy(body: Any) -> None:
    assert failed(body).requested_at is None


@given(st.binary(max_size=200))
def test_no_body_is_too_strange_to_be_judged(body: bytes) -> None:
    assert isinstance(answered(body), Success | Failure)


@pytest.mark.parametrize(
    ("asked", "again_at"),
    [
        ("2026-03-01T12:00:01Z", NOON + timedelta(seconds=1)),
        ("2026-03-01T13:30:00+01:00", NOON + timedelta(minutes=30)),
        ("2026-03-01T07:00:00.5-05:30", NOON + timedelta(minutes=30, milliseconds=500)),
        ("20260301T120001Z", NOON + timedelta(seconds=1)),
        ("2026-03-01T11:59:59Z", NOON),
        ("0001-01-01T00:00:00+23:59", NOON),
        ("2036-03-01T12:00:00Z", datetime(2036, 3, 1, 12, tzinfo=UTC)),
        ("9999-12-31T23:59:59-23:59", NOON + MAX_DELAY),
    ],
)
def test_not_ok_may_name_the_time_of_the_next_attempt(asked: str, again_at: datetime) -> None:
    named = failed({"ok": False, "nextExecuteAt": asked}).requested_at
    assert named == again_at
    assert named is not None
    assert named.tzinfo is UTC


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "soon",
        "2026-03-01T12:00:01",
        "2026-03-01",
        "2026-13-01T00:00:00Z",
        1_772_366_400,
        1.5,
        None,
        [],
        {},
        True,
    ],
    ids=str,
)
def test_a_time_that_is_none_or_has_no_zone_is_passed_over(asked: Any) -> None:
    assert failed({"ok": False, "nextExecuteAt": asked}).requested_at is None


def test_only_a_clear_no_may_name_a_time() -> None:
    assert failed({"nextExecuteAt": "2026-03-01T12:00:01Z"}).requested_at is None


@pytest.mark.parametrize("delivery", Delivery)
def test_the_named_time_goes_before_the_policy_and_the_delivery(delivery: str) -> None:
    verdict = failed({"ok": False, "nextExecuteAt": "2026-03-01T18:00:00Z"})
    terms = RetryTerms(
        ResponseContract.CALLBACK, delivery, RetryPolicy(max_attempts=1), 7, NOON - timedelta(days=9)
    )
    assert compute_next_attempt(terms, verdict, build_response(), NOON) == NOON + timedelta(hours=6)


@pytest.mark.parametrize(
    ("asked", "failures", "soonest", "latest"),
    [
        ("2026-03-01T12:00:00.010Z", 1, 1, 1),  # at once is not sooner than in a second
        ("2000-01-01T00:00:00Z", 1, 1, 30),
        ("2026-03-01T12:00:00Z", 4, 1, 240),
        ("0001-01-01T00:00:00+23:59", 99, 1, 3600),
    ],
)
def test_a_named_time_that_has_passed_means_the_policys_interval(
    asked: str, failures: int, soonest: float, latest: float
) -> None:
    verdict = failed({"ok": False, "nextExecuteAt": asked})
    terms = RetryTerms(ResponseContract.CALLBACK, Delivery.AT_LEAST_ONCE, RetryPolicy(), failures, NOON)
    for _ in range(50):
        again_at = compute_next_attempt(terms, verdict, build_response(), NOON)
        assert again_at is not None
        assert soonest <= (again_at - NOON).total_seconds() <= latest


def test_without_a_named_time_the_policy_decides() -> None:
    terms = RetryTerms(
        ResponseContract.CALLBACK, Delivery.AT_LEAST_ONCE, RetryPolicy(max_attempts=1), 1, NOON
    )
    assert compute_next_attempt(terms, failed({"ok": False}), build_response(), NOON) is None


def test_at_most_once_a_no_is_final_as_it_was_surely_received() -> None:
    terms = RetryTerms(ResponseContract.CALLBACK, Delivery.AT_MOST_ONCE, RetryPolicy(max_attempts=5), 1, NOON)
    assert compute_next_attempt(terms, failed({"ok": False}), build_response(), NOON) is None

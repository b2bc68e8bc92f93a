"""A callback's body decides: success, a retry by the policy, or an attempt at a requested time."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.outcome_rules import (
    CALLBACK_RULE,
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
from tests.factories import NOON
from tests.orchestration.support import build_response


def judge_answer(body: Any) -> Verdict:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return judge(ResponseContract.CALLBACK, build_response(body=raw), NOON)


def judge_failure(body: Any) -> Failure:
    verdict = judge_answer(body)
    assert isinstance(verdict, Failure)
    assert verdict.retryable
    assert verdict.meta["errorMeta"]["kind"] == "Rejected"
    return verdict


@pytest.mark.parametrize(
    "body", [{"ok": True}, {"ok": True, "nextExecuteAt": "2027-01-01T00:00:00Z"}], ids=str
)
def test_an_ok_is_a_success(body: Any) -> None:
    assert isinstance(judge_answer(body), Success)


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
def test_an_unclear_answer_is_retried_by_the_policy(body: Any) -> None:
    failure = judge_failure(body)
    assert failure.requested_at is None
    assert failure.meta["errorMeta"]["message"] == (
        f"The callback answered with status 200, but with another body. {CALLBACK_RULE}"
    )


@pytest.mark.parametrize("status", [201, 204, 302, 404, 429, 500])
def test_the_error_of_another_status_says_what_a_callback_must_answer(status: int) -> None:
    judged = judge(ResponseContract.CALLBACK, build_response(status=status), NOON)
    assert judged.meta["errorMeta"]["message"] == (
        f"The callback answered with status {status}. "
        'A timer\'s callback must answer 200 with {"ok": true}.'
    )


@given(st.binary(max_size=200))
def test_every_body_can_be_judged(body: bytes) -> None:
    assert isinstance(judge_answer(body), Success | Failure)


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
def test_a_not_ok_may_request_the_time_of_the_next_attempt(asked: str, again_at: datetime) -> None:
    failure = judge_failure({"ok": False, "nextExecuteAt": asked})
    assert failure.meta["errorMeta"]["message"] == 'The callback answered {"ok": false}.'
    named = failure.requested_at
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
        [],
        {},
        True,
    ],
    ids=str,
)
def test_an_invalid_time_or_one_without_a_zone_is_ignored_and_the_error_says_so(asked: Any) -> None:
    failure = judge_failure({"ok": False, "nextExecuteAt": asked})
    assert failure.requested_at is None
    assert failure.meta["errorMeta"]["message"] == (
        'The callback answered {"ok": false}, and its nextExecuteAt was ignored: '
        'it must be a time with an offset, such as "2026-03-01T12:00:00Z".'
    )


def test_only_a_not_ok_may_request_a_time() -> None:
    failure = judge_failure({"nextExecuteAt": "2026-03-01T12:00:01Z"})
    assert failure.requested_at is None
    assert failure.meta["errorMeta"]["message"] == (
        f"The callback answered with status 200, but with another body. {CALLBACK_RULE} "
        'Its nextExecuteAt was ignored: it counts only with "ok": false.'
    )


@pytest.mark.parametrize("answer", [{"ok": False}, {"ok": False, "nextExecuteAt": None}], ids=str)
def test_no_time_or_null_needs_no_explanation(answer: Any) -> None:
    failure = judge_failure(answer)
    assert failure.requested_at is None
    assert failure.meta["errorMeta"]["message"] == 'The callback answered {"ok": false}.'


@pytest.mark.parametrize("delivery", Delivery)
def test_a_requested_time_overrides_the_policy_and_the_delivery(delivery: str) -> None:
    verdict = judge_failure({"ok": False, "nextExecuteAt": "2026-03-01T18:00:00Z"})
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
def test_a_requested_time_in_the_past_means_the_policys_interval(
    asked: str, failures: int, soonest: float, latest: float
) -> None:
    verdict = judge_failure({"ok": False, "nextExecuteAt": asked})
    terms = RetryTerms(ResponseContract.CALLBACK, Delivery.AT_LEAST_ONCE, RetryPolicy(), failures, NOON)
    for _ in range(50):
        again_at = compute_next_attempt(terms, verdict, build_response(), NOON)
        assert again_at is not None
        assert soonest <= (again_at - NOON).total_seconds() <= latest


def test_without_a_requested_time_the_policy_decides() -> None:
    terms = RetryTerms(
        ResponseContract.CALLBACK, Delivery.AT_LEAST_ONCE, RetryPolicy(max_attempts=1), 1, NOON
    )
    assert compute_next_attempt(terms, judge_failure({"ok": False}), build_response(), NOON) is None


def test_at_most_once_a_not_ok_is_final_because_it_was_received() -> None:
    terms = RetryTerms(ResponseContract.CALLBACK, Delivery.AT_MOST_ONCE, RetryPolicy(max_attempts=5), 1, NOON)
    assert compute_next_attempt(terms, judge_failure({"ok": False}), build_response(), NOON) is None

"""Retry-After: seconds or a date are heeded up to a day, and nonsense is as good as nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.outcome_rules import Failure, judge
from orchestration.states import ResponseContract
from tests.conftest import NOON
from tests.orchestration.support import build_response

DAY = 86_400.0


def asked(value: str, status: int = 503, name: str = "Retry-After") -> float | None:
    verdict = judge(ResponseContract.STATUS, build_response(status=status, headers={name: value}), NOON)
    assert isinstance(verdict, Failure)
    return verdict.retry_after


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("007", 7.0),
        ("86400", DAY),
        ("86401", DAY),
        ("9" * 500, DAY),
        ("Sun, 01 Mar 2026 12:00:30 GMT", 30.0),
        ("Sun, 01 Mar 2026 13:00:30 +0100", 30.0),
        ("Sunday, 01-Mar-26 12:01:00 GMT", 60.0),
        ("Sun, 01 Mar 2026 11:00:00 GMT", 0.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", DAY),
    ],
)
def test_it_is_understood(value: str, seconds: float) -> None:
    assert asked(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        "",
        "soon",
        "-1",
        "1.5",
        "1e3",
        "+5",
        "٣",
        "²",
        "12 s",
        "Sun, 01 Mar",
        "Sun, 99 Mar 2026 12:00:30 GMT",
        "Sun, 01 Mar 2026 12:00:30 -0000",
        "Sun, 01 Mar 99999999999999999999 12:00:30 GMT",
        "Sun, 01 Mar 2026 12:00:30 +99999999999999",
        "2026-03-01T12:00:30Z",
    ],
)
def test_nonsense_is_as_good_as_nothing(value: str) -> None:
    assert asked(value) is None


@given(
    st.text(max_size=60)
    | st.from_regex(r"\w{3}, \d+ (Mar|May) \d+ \d+:\d+:\d+ ([+-]\d+|GMT)", fullmatch=True)
)
def test_whatever_a_server_says_the_answer_is_nothing_or_up_to_a_day(value: str) -> None:
    seconds = asked(value)
    assert seconds is None or 0 <= seconds <= DAY


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_it_is_heeded_with_every_status_that_may_pass_and_in_any_spelling(status: int) -> None:
    assert asked("5", status) == asked("5", status, "RETRY-AFTER") == asked("5", status, "retry-after") == 5.0


def test_it_is_not_with_one_that_is_final() -> None:
    assert asked("5", status=404) is None


def test_of_several_the_first_counts() -> None:
    both = {"Retry-After": "5", "retry-after": "9"}
    verdict = judge(ResponseContract.STATUS, build_response(status=503, headers=both), NOON)
    assert isinstance(verdict, Failure)
    assert verdict.retry_after == 5.0

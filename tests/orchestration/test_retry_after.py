"""Retry-After takes seconds or a date, up to a day. Invalid values are ignored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.outcome_rules import Failure, judge
from orchestration.states import ResponseContract
from tests.factories import NOON
from tests.orchestration.support import build_response

DAY = 86_400.0


def parse_delay(value: str, status: int = 503, name: str = "Retry-After") -> float | None:
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
def test_seconds_and_dates_are_understood(value: str, seconds: float) -> None:
    assert parse_delay(value) == seconds


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
def test_an_invalid_value_is_ignored(value: str) -> None:
    assert parse_delay(value) is None


@given(
    st.text(max_size=60)
    | st.from_regex(r"\w{3}, \d+ (Mar|May) \d+ \d+:\d+:\d+ ([+-]\d+|GMT)", fullmatch=True)
)
def test_any_value_means_no_delay_or_up_to_a_day(value: str) -> None:
    seconds = parse_delay(value)
    assert seconds is None or 0 <= seconds <= DAY


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_it_applies_to_every_retryable_status_in_any_spelling(status: int) -> None:
    assert (
        parse_delay("5", status)
        == parse_delay("5", status, "RETRY-AFTER")
        == parse_delay("5", status, "retry-after")
        == 5.0
    )


def test_it_is_ignored_with_a_final_status() -> None:
    assert parse_delay("5", status=404) is None


def test_the_first_of_several_headers_counts() -> None:
    both = {"Retry-After": "5", "retry-after": "9"}
    verdict = judge(ResponseContract.STATUS, build_response(status=503, headers=both), NOON)
    assert isinstance(verdict, Failure)
    assert verdict.retry_after == 5.0

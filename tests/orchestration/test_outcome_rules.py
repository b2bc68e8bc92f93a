"""The effect of each outcome of an attempt on its call, by contract and delivery mode."""

from __future__ import annotations

from itertools import product

import pytest

from execution.outcome import ErrorKind, Outcome
from orchestration.outcome_rules import Failure, RetryTerms, Success, Verdict, compute_next_attempt, judge
from orchestration.retries import RetryPolicy
from orchestration.states import Delivery, ResponseContract
from tests.factories import NOON
from tests.orchestration.support import build_error, build_response

AGAIN_KINDS = {"Timeout", "Dns", "Connect", "Tls", "Protocol"}
SUCCESSES = (200, 201, 202, 204, 206, 226, 299)
AGAIN_STATUSES = (408, 425, 429, 500, 502, 503, 504, 599)
FINAL_STATUSES = (301, 302, 304, 400, 401, 404, 409, 410, 422, 499)


def judge_outcome(outcome: Outcome, contract: str = ResponseContract.STATUS) -> Verdict:
    return judge(contract, outcome, NOON)


def is_retried(outcome: Outcome, contract: str, delivery: str) -> bool:
    """Return whether the call is retried, under a policy that has attempts left."""
    judged = judge_outcome(outcome, contract)
    terms = RetryTerms(contract, delivery, RetryPolicy(max_attempts=2, initial_interval=0), 1, NOON)
    return isinstance(judged, Failure) and compute_next_attempt(terms, judged, outcome, NOON) == NOON


@pytest.mark.parametrize(
    ("kind", "contract", "delivery"), list(product(ErrorKind, ResponseContract, Delivery))
)
def test_a_retryable_error_is_retried_if_the_delivery_allows_it(
    kind: ErrorKind, contract: str, delivery: str
) -> None:
    passing = kind.value in AGAIN_KINDS
    assert is_retried(build_error(kind=kind, sent=False), contract, delivery) == passing
    at_least_once = delivery == Delivery.AT_LEAST_ONCE
    assert is_retried(build_error(kind=kind, sent=True), contract, delivery) == (passing and at_least_once)


@pytest.mark.parametrize("kind", ErrorKind)
def test_an_error_is_stored_with_its_kind_and_message(kind: ErrorKind) -> None:
    assert judge_outcome(build_error(kind=kind)).meta == {
        "errorMeta": {
            "kind": kind.value,
            "message": "It did not work.",
            "details": {"phase": "x"},
            "latencyMs": 5.0,
        }
    }


@pytest.mark.parametrize("status", SUCCESSES)
def test_by_status_every_2xx_is_a_success(status: int) -> None:
    judged = judge_outcome(build_response(status=status))
    assert isinstance(judged, Success)
    assert judged.meta["responseMeta"]["status"] == status
    assert "errorMeta" not in judged.meta


@pytest.mark.parametrize("status", AGAIN_STATUSES)
@pytest.mark.parametrize("contract", ResponseContract)
def test_retryable_statuses_are_retried(status: int, contract: str) -> None:
    assert is_retried(build_response(status=status), contract, Delivery.AT_LEAST_ONCE)
    assert not is_retried(build_response(status=status), contract, Delivery.AT_MOST_ONCE)


@pytest.mark.parametrize("status", FINAL_STATUSES)
def test_by_status_every_other_status_is_final(status: int) -> None:
    assert not is_retried(build_response(status=status), ResponseContract.STATUS, Delivery.AT_LEAST_ONCE)


@pytest.mark.parametrize("status", [*SUCCESSES[1:], *AGAIN_STATUSES, *FINAL_STATUSES])
def test_as_a_callback_only_200_is_a_success_and_only_4xx_is_final(status: int) -> None:
    final = 400 <= status < 500 and status not in (408, 425, 429)
    judged = judge_outcome(build_response(status=status), ResponseContract.CALLBACK)
    assert isinstance(judged, Failure)
    assert judged.retryable is not final


def test_a_failed_response_is_stored_with_its_response_and_its_error() -> None:
    meta = judge_outcome(build_response(status=503, body=b"sorry", headers={"Set-Cookie": "s3cret"})).meta
    assert meta["responseMeta"] == {
        "status": 503,
        "headers": {"Set-Cookie": "••••••"},
        "bodySnippet": "sorry",
        "latencyMs": 12.3,
    }
    assert (meta["errorMeta"]["kind"], meta["errorMeta"]["details"]) == ("HttpStatus", {"status": 503})


def test_the_beginning_of_a_body_is_stored_as_text_that_every_database_accepts() -> None:
    snippet = judge_outcome(build_response(body=b"\0\xff" + b"x" * 5000)).meta["responseMeta"]["bodySnippet"]
    assert snippet == "\ufffd\ufffd" + "x" * 2046


def test_without_attempts_left_nothing_is_retried() -> None:
    terms = RetryTerms(ResponseContract.STATUS, Delivery.AT_LEAST_ONCE, RetryPolicy(), 1, NOON)
    failure = judge_outcome(build_error())
    assert isinstance(failure, Failure)
    assert compute_next_attempt(terms, failure, build_error(), NOON) is None

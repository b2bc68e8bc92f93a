"""The attempt log: rows are opened before the request is sent, closed with the outcome, and found if left open."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest

from eventservice.kernel.ids import new_id
from execution.attempt_log import (
    MAX_LOGGED_BODY_LENGTH,
    AttemptKey,
    OpenedAttempt,
    close_attempts,
    interrupt_attempts,
    list_orphaned_attempts,
    open_attempts,
)
from execution.models import HttpExecution
from execution.outcome import Errored, ErrorKind, Responded, Timings
from tests.factories import EARLIER, ServiceCallFactory

pytestmark = pytest.mark.django_db

LATER = EARLIER + timedelta(seconds=2)
NODE = uuid.UUID(int=1)


def open_attempt(node: uuid.UUID = NODE, key: AttemptKey | None = None, **given: Any) -> AttemptKey:
    call = key or ServiceCallFactory()
    attempt_key = AttemptKey(call.tenant_id, call.service_call_id, new_id())
    values = {"url": "http://target.test/", "method": "PUT", "headers": {"A": "b"}, "body": "text", **given}
    open_attempts([OpenedAttempt(attempt_key, 2, node, **values)], EARLIER)
    return attempt_key


def read_row(key: AttemptKey) -> HttpExecution:
    found: HttpExecution = HttpExecution.objects.for_tenant(key.tenant_id).get(execution_id=key.execution_id)
    return found


def build_response(body: bytes = b"fine", size: int | None = None, *headers: tuple[str, str]) -> Responded:
    return Responded(None, 201, headers, body, len(body) if size is None else size, Timings(total_ms=12.5))


def test_an_open_row_has_the_request_that_is_about_to_be_sent() -> None:
    found = read_row(open_attempt())
    assert (found.attempt, found.node, found.started_at, found.finished_at) == (2, NODE, EARLIER, None)
    assert (found.request_method, found.request_url) == ("PUT", "http://target.test/")
    assert (found.request_headers, found.request_body) == ({"A": "b"}, "text")
    assert [found.response_status, found.error_kind, found.latency_ms] == [None] * 3


def test_a_response_closes_it() -> None:
    key = open_attempt()
    close_attempts([(key, build_response(b"fine", None, ("Content-Type", "a/b")))], LATER)
    found = read_row(key)
    assert (found.finished_at, found.response_status, found.latency_ms) == (LATER, 201, 12.5)
    assert (found.response_headers, found.response_body) == ({"Content-Type": "a/b"}, "fine")
    assert (found.error_kind, found.error_message) == (None, None)


def test_an_error_closes_it_too() -> None:
    key = open_attempt()
    close_attempts([(key, Errored(None, ErrorKind.TLS, "No.", {}, Timings(total_ms=7.0), False))], LATER)
    found = read_row(key)
    assert (found.finished_at, found.error_kind, found.error_message) == (LATER, "Tls", "No.")
    assert (found.response_status, found.response_size, found.latency_ms) == (None, None, 7.0)


@pytest.mark.parametrize(
    ("timings", "phases"),
    [
        (
            Timings(dns_ms=1.04, connect_ms=2.96, tls_ms=12, first_byte_ms=40.26, total_ms=42),
            {"dnsMs": 1.0, "connectMs": 3.0, "tlsMs": 12, "firstByteMs": 40.3},
        ),
        (Timings(first_byte_ms=0.01, total_ms=42), {"firstByteMs": 0.0}),  # over a reused connection
        (Timings(total_ms=42), {}),
    ],
)
def test_the_phases_that_happened_are_kept_to_a_tenth_of_a_millisecond(
    timings: Timings, phases: dict[str, float]
) -> None:
    answered, failed = open_attempt(), open_attempt()
    response = Responded(None, 200, (), b"", 0, timings)
    error = Errored(None, ErrorKind.TLS, "No.", {}, timings, may_have_been_sent=False)
    close_attempts([(answered, response), (failed, error)], LATER)
    assert (read_row(answered).phases, read_row(failed).phases) == (phases, phases)


def test_only_the_given_attempt_is_closed() -> None:
    key, other = open_attempt(), open_attempt()
    same_ids = AttemptKey(other.tenant_id, key.service_call_id, key.execution_id)
    close_attempts([(key, build_response()), (same_ids, build_response())], LATER)
    assert read_row(other).finished_at is None


def test_the_full_size_of_a_truncated_body_is_kept() -> None:
    key = open_attempt()
    close_attempts([(key, build_response(b"beginning", 5_000_000_000))], LATER)
    assert (read_row(key).response_body, read_row(key).response_size) == ("beginning", 5_000_000_000)


def test_a_long_request_body_is_truncated() -> None:
    assert (
        read_row(open_attempt(body="ü" * (MAX_LOGGED_BODY_LENGTH + 1))).request_body
        == "ü" * MAX_LOGGED_BODY_LENGTH
    )


def test_no_body_is_not_an_empty_one() -> None:
    assert read_row(open_attempt(body=None)).request_body is None
    assert read_row(open_attempt(body="")).request_body == ""


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"a\0b", "a\ufffdb"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        ("grüße 🎉".encode(), "grüße 🎉"),
        (b"\xf0\x9f\x8e", "\ufffd"),
        (b"'; DROP TABLE nodes; -- %s %(x)s", "'; DROP TABLE nodes; -- %s %(x)s"),
        (b"", ""),
    ],
)
def test_any_response_body_is_logged_as_text_that_every_database_accepts(body: bytes, shown: str) -> None:
    key = open_attempt()
    close_attempts([(key, build_response(body))], LATER)
    assert (read_row(key).response_body, read_row(key).response_size) == (shown, len(body))


def test_a_nul_in_a_request_body_is_logged_as_a_replacement_character() -> None:
    assert read_row(open_attempt(body="a\0b")).request_body == "a\ufffdb"


def test_secret_response_headers_are_masked() -> None:
    key = open_attempt()
    close_attempts(
        [(key, build_response(b"", None, ("Set-Cookie", "s3cret"), ("X-Api-Key", "s3cret"), ("A", "é")))],
        LATER,
    )
    assert read_row(key).response_headers == {"Set-Cookie": "••••••", "X-Api-Key": "••••••", "A": "é"}


def test_an_interrupted_attempt_is_closed_as_one() -> None:
    key = open_attempt()
    interrupt_attempts([key], LATER)
    assert (read_row(key).error_kind, read_row(key).finished_at) == ("Interrupted", LATER)
    assert (read_row(key).latency_ms, read_row(key).phases) == (None, None)


def test_an_attempt_that_was_recorded_is_not_interrupted_afterwards() -> None:
    key = open_attempt()
    close_attempts([(key, build_response())], EARLIER)
    interrupt_attempts([key], LATER)
    assert (read_row(key).response_status, read_row(key).error_kind, read_row(key).finished_at) == (
        201,
        None,
        EARLIER,
    )


def test_a_late_result_replaces_the_interruption() -> None:
    key = open_attempt()
    interrupt_attempts([key], EARLIER)
    close_attempts([(key, build_response())], LATER)
    assert (read_row(key).response_status, read_row(key).error_kind, read_row(key).finished_at) == (
        201,
        None,
        LATER,
    )


def test_orphans_are_the_open_attempts_of_nodes_that_do_not_exist() -> None:
    orphan, orphan_of_another_tenant = open_attempt(new_id()), open_attempt(new_id())
    alive, ended = open_attempt(NODE), open_attempt(new_id())
    close_attempts([(ended, build_response())], LATER)
    assert sorted(list_orphaned_attempts(lambda: [NODE], 10)) == sorted([orphan, orphan_of_another_tenant])
    assert len(list_orphaned_attempts(lambda: [NODE], 1)) == 1
    assert sorted(list_orphaned_attempts(list, 10)) == sorted([orphan, orphan_of_another_tenant, alive])


def test_a_node_that_joins_during_the_search_for_orphans_is_not_taken_for_gone() -> None:
    orphan, newcomer = open_attempt(new_id()), new_id()

    def list_nodes() -> list[uuid.UUID]:
        open_attempt(newcomer)
        return []

    assert list_orphaned_attempts(list_nodes, 10) == [orphan]

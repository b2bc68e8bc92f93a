"""The request that is sent for a call: which headers win, how the body is encoded, and that a lost secret stops it."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from execution.attempt_builder import StoredRequest, build_attempt
from execution.outcome import Attempt, Errored, ErrorKind
from execution.redaction import encrypt_headers

CALL = uuid.UUID(int=5)
TENANT = uuid.UUID(int=6)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def build(body: Any = None, headers: dict[str, str] | None = None, **given: Any) -> Attempt:
    request = StoredRequest("POST", "http://target.test/x", encrypt_headers(headers or {}, ()), body)
    terms = {
        "key": "k",
        "tenant_id": TENANT,
        "service_call_id": CALL,
        "attempt": 3,
        "timeout_seconds": 2.5,
        "signer": None,
        "now": NOON,
    }
    attempt = build_attempt(request, **{**terms, **given})
    assert isinstance(attempt, Attempt)
    return attempt


def build_headers(body: Any = None, headers: dict[str, str] | None = None) -> dict[str, str]:
    attempt = build(body, headers)
    assert len({name.lower() for name, _ in attempt.headers}) == len(attempt.headers)
    return dict(attempt.headers)


def test_the_request_is_sent_as_it_was_submitted() -> None:
    attempt = build("text", {"Accept": "a/b"})
    assert (attempt.key, attempt.tenant) == ("k", TENANT)
    assert (attempt.method, attempt.url) == ("POST", "http://target.test/x")
    assert (attempt.body, attempt.timeout_seconds) == (b"text", 2.5)
    assert ("Accept", "a/b") in attempt.headers


def test_every_request_identifies_its_call_and_attempt() -> None:
    assert build_headers() == {
        "Idempotency-Key": str(CALL),
        "User-Agent": "EventService/1",
        "X-Service-Call-Id": str(CALL),
        "X-Attempt": "3",
    }


@pytest.mark.parametrize("name", ["Idempotency-Key", "idempotency-key", "IDEMPOTENCY-KEY"])
def test_the_callers_own_idempotency_key_counts_in_any_spelling(name: str) -> None:
    assert build_headers(headers={name: "theirs"})["Idempotency-Key"] == "theirs"


@pytest.mark.parametrize("name", ["user-agent", "content-type"])
def test_the_callers_header_replaces_a_default_of_its_name(name: str) -> None:
    assert build_headers({"n": 1}, {name: "theirs"})[name.title()] == "theirs"


@pytest.mark.parametrize("name", ["x-attempt", "X-Service-Call-Id"])
def test_the_headers_that_identify_the_attempt_cannot_be_overridden(name: str) -> None:
    headers = build_headers(headers={name: "forged"})
    assert (headers["X-Attempt"], headers["X-Service-Call-Id"]) == ("3", str(CALL))


def test_secret_headers_are_decrypted_to_be_sent() -> None:
    assert build_headers(headers={"Authorization": "Bearer s3cret"})["Authorization"] == "Bearer s3cret"


def test_a_string_is_sent_as_it_is_without_a_content_type() -> None:
    assert build('{"a": "ü"} ').body == '{"a": "ü"} '.encode()
    assert "Content-Type" not in build_headers("text")


@pytest.mark.parametrize("body", [{"a": [1, None, "ü"]}, [], {}, 0, False, 1.5], ids=str)
def test_anything_else_is_sent_as_json(body: Any) -> None:
    sent_body = build(body).body
    assert sent_body is not None
    assert json.loads(sent_body) == body
    assert build_headers(body)["Content-Type"] == "application/json"


def test_json_is_written_compactly_and_in_utf_8() -> None:
    assert build({"a": "ü", "b": [1, 2]}).body == '{"a":"ü","b":[1,2]}'.encode()


def test_no_body_is_none_and_an_empty_string_is_one() -> None:
    assert build(None).body is None
    assert build("").body == b""


def test_a_stored_request_without_headers_or_body_is_complete() -> None:
    request = StoredRequest.from_spec({"method": "GET", "url": "http://target.test/"})
    assert (request.masked_headers, request.body_text) == ({}, None)


def test_a_secret_that_cannot_be_decrypted_stops_the_attempt() -> None:
    request = StoredRequest("GET", "http://target.test/", {"Cookie": {"encrypted": "enc:v1:lost"}}, None)
    refused = build_attempt(
        request, key="k", tenant_id=TENANT, service_call_id=CALL, attempt=1, timeout_seconds=1, signer=None,
        now=NOON,
    )  # fmt: skip
    assert isinstance(refused, Errored)
    assert (refused.key, refused.kind, refused.may_have_been_sent) == ("k", ErrorKind.EGRESS, False)

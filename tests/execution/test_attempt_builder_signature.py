"""Requests of a tenant with a signing secret can be verified by the Standard Webhooks definition."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from eventservice.kernel.secrets import encrypt
from execution.attempt_builder import Signer, StoredRequest, build_attempt
from execution.outcome import Attempt, Errored, ErrorKind

NOON = datetime(2026, 3, 1, 12, 0, 0, 999_999, tzinfo=UTC)
KEY = secrets.token_bytes(24)
SECRET = "whsec_" + base64.b64encode(KEY).decode()
CALL = uuid.UUID(int=5)


def build_signed(body: Any = None, signer: Signer | None = Signer(encrypt(SECRET)), **given: Any) -> Attempt:  # noqa: B008 (frozen)
    terms = {
        "key": "k", "tenant_id": CALL, "service_call_id": CALL, "attempt": 1, "timeout_seconds": 1.0, "now": NOON,
        **given,
    }  # fmt: skip
    attempt = build_attempt(StoredRequest("POST", "http://target.test/", {}, body), signer=signer, **terms)
    assert isinstance(attempt, Attempt)
    return attempt


def is_valid(attempt: Attempt, key: bytes = KEY, body: bytes | None = None) -> bool:
    """Verify the signature as a receiver does: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/."""
    headers = {name.lower(): value for name, value in attempt.headers}
    content = (attempt.body or b"") if body is None else body
    message = b".".join([headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), content])
    expected = base64.b64encode(hmac.new(key, message, hashlib.sha256).digest()).decode()
    return f"v1,{expected}" in headers["webhook-signature"].split(" ")


@pytest.mark.parametrize("body", [None, "", "text", "ü\r\n.", {"a": "ü"}, []], ids=repr)
def test_a_receiver_can_verify_it(body: Any) -> None:
    assert is_valid(build_signed(body))


def test_it_covers_the_body_and_depends_on_the_secret() -> None:
    attempt = build_signed("text")
    assert not is_valid(attempt, body=b"other")
    assert not is_valid(attempt, key=b"other")


def test_the_published_example_is_signed_as_published() -> None:
    signer = Signer(encrypt("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))
    headers = signer.headers(
        "msg_p5jXN8AQM9LWM0D4loKWxJek", datetime.fromtimestamp(1614265330, UTC), b'{"test": 2432232314}'
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_signed_id_is_the_calls_and_the_timestamp_the_attempts() -> None:
    first, second = (
        dict(a.headers) for a in (build_signed(), build_signed(attempt=2, now=NOON + timedelta(seconds=5)))
    )
    assert first["webhook-id"] == second["webhook-id"] == str(CALL)
    assert int(second["webhook-timestamp"]) - int(first["webhook-timestamp"]) == 5
    assert first["webhook-timestamp"] == "1772366400"


def test_a_secret_may_be_given_without_its_prefix() -> None:
    assert is_valid(build_signed("text", Signer(encrypt(SECRET.removeprefix("whsec_")))))


def test_without_a_secret_nothing_is_signed() -> None:
    assert not [name for name, _ in build_signed(signer=None).headers if name.startswith("webhook")]


@pytest.mark.parametrize("secret", ["whsec_a", "whsec_abcde", "hello"])
def test_an_invalid_signing_secret_stops_the_attempt(secret: str) -> None:
    refused = build_attempt(
        StoredRequest("POST", "http://target.test/", {}, None),
        key="k",
        tenant_id=CALL,
        service_call_id=CALL,
        attempt=1,
        timeout_seconds=1.0,
        signer=Signer(encrypt(secret)),
        now=NOON,
    )
    assert isinstance(refused, Errored)
    assert (refused.kind, refused.may_have_been_sent) == (ErrorKind.EGRESS, False)
    assert secret not in refused.message

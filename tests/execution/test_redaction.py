"""Secret header values are encrypted when stored, and masked wherever they are shown."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventservice.kernel.secrets import Undecipherable
from execution.outcome import Responded, Timings
from execution.redaction import (
    MASK,
    decrypt_headers,
    encrypt_headers,
    is_secret_header,
    mask_response_headers,
    mask_stored_headers,
    redact_outcome,
)

SECRET = [
    "Authorization",
    "authorization",
    "COOKIE",
    "Set-Cookie",
    "Proxy-Authorization",
    "X-Api-Key",
    "api-key",
    "X-Auth-Token",
    "X-Csrf-TOKEN",
    "Client-Secret",
    "X-Password-Password",
    "X-Hub-Signature",
    "Webhook-Signature",
    "APIKEY",
    "api_key",
    "x_api_key",
    "X-ApiKey",
    "Token",
    "Password",
    "Secret",
    "X-Auth",
    "Authentication",
]
PUBLIC = [
    "Accept",
    "Content-Type",
    "Idempotency-Key",
    "IDEMPOTENCY-KEY",
    "idempotency_key",
    "Key",
    "X-Key-Id",
    "X-Tokens",
    "Monkey",
    "X-Monkey",
    "Cookies",
    "",
]

names = st.sampled_from([*SECRET, *PUBLIC]) | st.text(max_size=20)
headers = st.dictionaries(names, st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=8)


@pytest.mark.parametrize("name", SECRET)
def test_these_are_secret(name: str) -> None:
    assert is_secret_header(name)


@pytest.mark.parametrize("name", PUBLIC)
def test_these_are_not_secret(name: str) -> None:
    assert not is_secret_header(name)


def test_a_tenant_may_add_secret_names_but_not_remove_any() -> None:
    assert is_secret_header("X-Session", {"x-session"})
    assert is_secret_header("Cookie", {"x-session"})
    assert not is_secret_header("X-Session-Id", {"x-session"})


@pytest.mark.parametrize(("name", "named"), [("X-Pin", "x_pin"), ("X_PIN", "x-pin"), ("x_pin", "X-Pin")])
def test_header_names_are_compared_with_hyphens_and_underscores_alike(name: str, named: str) -> None:
    assert is_secret_header(name, {named})
    outcome = redact_outcome(build_response(b"", (name, "4711")), {named}, {})
    assert isinstance(outcome, Responded)
    assert outcome.headers == ((name, MASK),)


def test_a_secret_value_is_stored_as_an_object_and_any_other_as_it_is() -> None:
    stored = encrypt_headers({"Cookie": "s3cret", "X-Session": "s3cret", "Accept": "a/b"}, {"x-session"})
    assert stored["Accept"] == "a/b"
    assert [list(stored[name]) for name in ("Cookie", "X-Session")] == [["encrypted"], ["encrypted"]]
    assert "s3cret" not in json.dumps(stored)


def test_no_string_of_a_caller_is_taken_for_an_encrypted_value() -> None:
    tricky = {"A": "enc:v1:gAAAA", "B": '{"encrypted": "x"}'}
    assert decrypt_headers(encrypt_headers(tricky, ())) == tricky
    assert mask_stored_headers(encrypt_headers(tricky, ())) == tricky


def test_the_same_secret_is_never_stored_the_same_way() -> None:
    assert encrypt_headers({"Cookie": "s3cret"}, ()) != encrypt_headers({"Cookie": "s3cret"}, ())


def test_a_value_whose_key_is_lost_cannot_be_decrypted_and_is_still_masked() -> None:
    lost = {"Cookie": {"encrypted": "enc:v1:gAAAAA"}}
    with pytest.raises(Undecipherable):
        decrypt_headers(lost)
    assert mask_stored_headers(lost) == {"Cookie": MASK}


@settings(deadline=None)
@given(headers)
def test_encrypted_headers_decrypt_to_what_they_were(given_headers: dict[str, str]) -> None:
    stored = json.loads(json.dumps(encrypt_headers(given_headers, {"a"})))
    assert decrypt_headers(stored) == given_headers


@settings(deadline=None)
@given(headers)
def test_exactly_the_secret_values_are_masked(given_headers: dict[str, str]) -> None:
    expected = {
        name: MASK if is_secret_header(name, {"a"}) else value for name, value in given_headers.items()
    }
    assert mask_stored_headers(encrypt_headers(given_headers, {"a"})) == expected


def test_repeated_response_headers_are_joined_in_their_order() -> None:
    shown = mask_response_headers([("Via", "a"), ("Set-Cookie", "x"), ("Via", "b"), ("Set-Cookie", "y")])
    assert shown == {"Via": "a, b", "Set-Cookie": f"{MASK}, {MASK}"}


# --- secrets that a server echoes ---------------------------------------------------------------------------------


def build_response(body: bytes, *headers: tuple[str, str]) -> Responded:
    return Responded("key", 200, headers, body, len(body), Timings())


SENT = encrypt_headers(
    {"Authorization": "Bearer c4n4ry-5ecret", "Cookie": "a=1; session=0123456789", "Accept": "text/html"}, ()
)


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (b'{"Authorization": "Bearer c4n4ry-5ecret"}', f'{{"Authorization": "{MASK}"}}'.encode()),
        (b"token: c4n4ry-5ecret.", f"token: {MASK}.".encode()),
        (b"session 0123456789 of a", f"session {MASK} of a".encode()),
        (b"Bearer a=1; text/html", b"Bearer a=1; text/html"),
    ],
)
def test_an_echoed_secret_is_masked(body: bytes, kept: bytes) -> None:
    outcome = redact_outcome(build_response(body, ("X-Echo", body.decode())), (), SENT)
    assert isinstance(outcome, Responded)
    assert (outcome.body, outcome.headers) == (kept, (("X-Echo", kept.decode()),))
    assert outcome.body_size == len(body), "the size of what was received"


BASIC = encrypt_headers(
    {"Authorization": "Basic " + base64.b64encode('anna:pa/ss"wörd'.encode()).decode()}, ()
)
UNPADDED = encrypt_headers(
    {"Authorization": "basic " + base64.b64encode(b"anna:pa/ss-word1").decode().rstrip("=")}, ()
)
ODD = encrypt_headers({"X-Token": 'quo"te\\sl/ash-ü'}, ())


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (ODD, 'quo"te\\sl/ash-ü'.encode()),
        (ODD, 'quo"te\\sl/ash-ü'.encode("latin-1")),
        (ODD, json.dumps('quo"te\\sl/ash-ü').encode()),
        (ODD, json.dumps('quo"te\\sl/ash-ü', ensure_ascii=False).encode()),
        (ODD, json.dumps('quo"te\\sl/ash-ü').replace("/", "\\/").encode()),
        (BASIC, 'user anna:pa/ss"wörd'.encode()),
        (BASIC, 'password: pa/ss"wörd'.encode()),
        (BASIC, json.dumps('pa/ss"wörd').encode()),
        (UNPADDED, b"anna:pa/ss-word1"),
    ],
)
def test_an_echoed_secret_is_found_in_every_form(sent: dict[str, Any], body: bytes) -> None:
    outcome = redact_outcome(build_response(body, ("X-Echo", body.decode("latin-1"))), (), sent)
    assert isinstance(outcome, Responded)
    for kept in (outcome.body, outcome.headers[0][1].encode()):
        assert MASK.encode() in kept
        assert b"ash" not in kept
        assert b"pa/ss" not in kept


@pytest.mark.parametrize("there", [4, 9, 11])
def test_the_beginning_of_a_secret_at_the_end_of_a_truncated_body_is_masked(there: int) -> None:
    cut = build_response(b"token: " + b"c4n4ry-5ecret"[:there])._replace(body_size=100_000)
    outcome = redact_outcome(cut, (), SENT)
    assert isinstance(outcome, Responded)
    assert (outcome.body, outcome.body_size) == (f"token: {MASK}".encode(), 100_000)


def test_a_complete_body_that_ends_like_a_secret_begins_stays() -> None:
    outcome = redact_outcome(build_response(b"token: c4n4ry"), (), SENT)
    assert isinstance(outcome, Responded)
    assert outcome.body == b"token: c4n4ry"


def test_a_header_that_a_tenant_calls_secret_is_masked_in_responses_too() -> None:
    outcome = redact_outcome(build_response(b"", ("X-Plan", "gold")), {"x-plan"}, {})
    assert isinstance(outcome, Responded)
    assert outcome.headers == (("X-Plan", MASK),)


def test_a_response_to_a_request_without_secrets_stays_as_it_is() -> None:
    outcome = build_response(b"Bearer c4n4ry-5ecret", ("Date", "today"))
    assert redact_outcome(outcome, (), {"Accept": "text/html"}) is outcome

"""Secret header values are sealed where they are stored, and masked wherever they are shown."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventservice.kernel.secrets import Undecipherable
from execution.redaction import MASK, is_secret, mask_response, mask_sealed, open_sealed, seal

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
]
PUBLIC = [
    "Accept",
    "Content-Type",
    "Idempotency-Key",
    "IDEMPOTENCY-KEY",
    "Key",
    "Token",
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
    assert is_secret(name)


@pytest.mark.parametrize("name", PUBLIC)
def test_these_are_not(name: str) -> None:
    assert not is_secret(name)


def test_a_tenant_may_name_more_but_not_take_any_away() -> None:
    assert is_secret("X-Session", {"x-session"})
    assert is_secret("Cookie", {"x-session"})
    assert not is_secret("X-Session-Id", {"x-session"})


def test_a_secret_value_is_stored_as_an_object_and_any_other_as_it_is() -> None:
    sealed = seal({"Cookie": "s3cret", "X-Session": "s3cret", "Accept": "a/b"}, {"x-session"})
    assert sealed["Accept"] == "a/b"
    assert [list(sealed[name]) for name in ("Cookie", "X-Session")] == [["encrypted"], ["encrypted"]]
    assert "s3cret" not in json.dumps(sealed)


def test_no_text_of_a_caller_can_be_taken_for_a_sealed_value() -> None:
    tricky = {"A": "enc:v1:gAAAA", "B": '{"encrypted": "x"}'}
    assert open_sealed(seal(tricky, ())) == tricky
    assert mask_sealed(seal(tricky, ())) == tricky


def test_the_same_secret_is_never_stored_the_same_way() -> None:
    assert seal({"Cookie": "s3cret"}, ()) != seal({"Cookie": "s3cret"}, ())


def test_a_value_sealed_with_a_lost_key_does_not_open_and_is_still_masked() -> None:
    lost = {"Cookie": {"encrypted": "enc:v1:gAAAAA"}}
    with pytest.raises(Undecipherable):
        open_sealed(lost)
    assert mask_sealed(lost) == {"Cookie": MASK}


@settings(deadline=None)
@given(headers)
def test_what_was_sealed_opens_as_it_was(given_headers: dict[str, str]) -> None:
    stored = json.loads(json.dumps(seal(given_headers, {"a"})))
    assert open_sealed(stored) == given_headers


@settings(deadline=None)
@given(headers)
def test_what_is_shown_is_masked_exactly_where_it_is_secret(given_headers: dict[str, str]) -> None:
    expected = {name: MASK if is_secret(name, {"a"}) else value for name, value in given_headers.items()}
    assert mask_sealed(seal(given_headers, {"a"})) == expected
    assert mask_response(list(given_headers.items()), {"a"}) == expected


def test_repeated_response_headers_are_joined_in_their_order() -> None:
    shown = mask_response([("Via", "a"), ("Set-Cookie", "x"), ("Via", "b"), ("Set-Cookie", "y")])
    assert shown == {"Via": "a, b", "Set-Cookie": f"{MASK}, {MASK}"}

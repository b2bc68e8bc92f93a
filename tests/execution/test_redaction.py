"""Secret header values are encrypted when stored, and masked wherever they are shown."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventservice.kernel.secrets import Undecipherable
from execution.outcome import Errored, ErrorKind, Responded, Timings
from execution.redaction import (
    MASK,
    decrypt_headers,
    encrypt_headers,
    is_secret_header,
    mask_query,
    mask_response_headers,
    mask_stored_headers,
    redact_outcome,
    reencrypt_headers,
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
# Names that are in use somewhere, or that a tenant may well choose.
PLAUSIBLE = [
    "X-Authorization",
    "X-JWT",
    "JWT",
    "AccessToken",
    "access_token",
    "X-Access-Token",
    "X-Session",
    "X-Session-Id",
    "SessionId",
    "DPoP",
    "Bearer",
    "X-Bearer",
    "X-Bearer-Token",
    "OAuth",
    "X-OAuth-Token",
    "X-Amz-Security-Token",
    "Ocp-Apim-Subscription-Key",
    "X-Functions-Key",
    "X-Vault-Token",
    "PRIVATE-TOKEN",
    "X-Shopify-Access-Token",
    "X-Goog-Api-Key",
    "X-Goog-IAP-JWT-Assertion",
    "X-Forwarded-Access-Token",
    "X-XSRF-TOKEN",
    "X-SID",
    "JWT-Token",
    "X-Hub-Signature-256",
    "Signature",
    "Stripe-Signature",
    "X-Slack-Signature",
    "X-HMAC",
    "X-Pass",
    "X-Passwd",
    "X-Pwd",
    "X-PIN",
    "X-OTP",
    "X-Credentials",
    "Credential",
    "X-SSL-Client-Key",
    "X-Login",
    "X-User-Pass",
    "Refresh-Token",
    "Id-Token",
    "X-Id-Token",
    "SAMLResponse",
    "Assertion",
    "X-Ticket",
    "License-Key",
    "X-License",
    "Passphrase",
    "X-Encryption-Key",
    "Cf-Access-Client-Secret",
    "CF-Access-Jwt-Assertion",
    "X-Appwrite-Key",
    "X-Parse-REST-API-Key",
    "DD-API-KEY",
    "X-Plex-Token",
    "X-Emby-Authorization",
    "X-JFrog-Art-Api",
    "X-Tableau-Auth",
    "X-Auth-Email",
    "Auth",
    "XAuthToken",
    "X-AUTH-KEY",
    "apiToken",
    "authToken",
    "X-MasterKey",
    "Authorisation",
    "X-Csrftoken",
    "X-Tokens",
    "Cookies",
    "Key",
    "Basic",
    "X-Goog-IAM-Authorization-Token",
]
PUBLIC = [
    "Accept",
    "Author",
    "X-Author",
    "Content-Type",
    "Content-Security-Policy",
    "Access-Control-Allow-Credentials",
    "Idempotency-Key",
    "IDEMPOTENCY-KEY",
    "IdempotencyKey",
    "idempotency_key",
    "If-None-Match",
    "Traceparent",
    "WWW-Authenticate",
    "X-Api-Version",
    "X-Client-Id",
    "X-Compass",
    "X-Forwarded-For",
    "X-Key-Id",
    "X-Keyword",
    "X-Passenger",
    "X-RateLimit-Remaining-Tokens",
    "X-Request-Id",
    "X-Side",
    "Monkey",
    "X-Monkey",
    "Design",
    "",
]

names = st.sampled_from([*SECRET, *PUBLIC]) | st.text(max_size=20)
headers = st.dictionaries(names, st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=8)


@pytest.mark.parametrize("name", [*SECRET, *PLAUSIBLE])
def test_these_are_secret(name: str) -> None:
    assert is_secret_header(name)


@pytest.mark.parametrize("name", PUBLIC)
def test_these_are_not_secret(name: str) -> None:
    assert not is_secret_header(name)


def test_a_tenant_may_add_secret_names_but_not_remove_any() -> None:
    assert is_secret_header("X-Plan", {"x-plan"})
    assert is_secret_header("Cookie", {"x-plan"})
    assert not is_secret_header("X-Plan-Id", {"x-plan"})


def test_a_tenant_may_name_all_headers() -> None:
    given = {"X-Plan": "gold", "Accept": "a/b", "Content-Type": "c/d", "Idempotency-Key": "1", "X-Trace": "2"}
    assert mask_stored_headers(encrypt_headers(given, {"*"})) == {**given, "X-Plan": MASK, "X-Trace": MASK}
    response = build_response(b"", ("X-Plan", "gold"), ("Retry-After", "5"), ("Content-Type", "c/d"))
    outcome = redact_outcome(response, {"*"}, {})
    assert isinstance(outcome, Responded)
    assert outcome.headers == (("X-Plan", MASK), ("Retry-After", "5"), ("Content-Type", "c/d"))


@pytest.mark.parametrize(("name", "named"), [("X-Ssn", "x_ssn"), ("X_SSN", "x-ssn"), ("x_ssn", "X-Ssn")])
def test_header_names_are_compared_with_hyphens_and_underscores_alike(name: str, named: str) -> None:
    assert is_secret_header(name, {named})
    outcome = redact_outcome(build_response(b"", (name, "4711")), {named}, {})
    assert isinstance(outcome, Responded)
    assert outcome.headers == ((name, MASK),)


def test_a_secret_value_is_stored_as_an_object_and_any_other_as_it_is() -> None:
    stored = encrypt_headers({"Cookie": "s3cret", "X-Plan": "s3cret", "Accept": "a/b"}, {"x-plan"})
    assert stored["Accept"] == "a/b"
    assert [list(stored[name]) for name in ("Cookie", "X-Plan")] == [["encrypted"], ["encrypted"]]
    assert "s3cret" not in json.dumps(stored)


def test_no_string_of_a_caller_is_taken_for_an_encrypted_value() -> None:
    tricky = {"A": "enc:v1:gAAAA", "B": '{"encrypted": "x"}'}
    assert decrypt_headers(encrypt_headers(tricky, ())) == tricky
    assert mask_stored_headers(encrypt_headers(tricky, ())) == tricky


def test_a_value_that_was_stored_before_its_name_was_known_to_be_secret_is_masked_and_can_be_encrypted() -> (
    None
):
    stored = {"X-Jwt": "s3cret", "X-Plan": "gold", "Accept": "a/b"}
    assert mask_stored_headers(stored) == {"X-Jwt": MASK, "X-Plan": "gold", "Accept": "a/b"}
    again = reencrypt_headers(stored, {"x-plan"}, lambda value: value)
    assert decrypt_headers(again) == stored
    assert [isinstance(value, dict) for value in again.values()] == [True, True, False]


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


def test_a_secret_in_the_target_of_a_redirect_is_masked() -> None:
    target = "https://b.example/callback?state=1&id_token=s3cret#access_token=s3cret"
    shown = mask_response_headers([("Location", target), ("X-Other", "a?token=1")])
    masked = f"https://b.example/callback?state=1&id_token={MASK}#access_token={MASK}"
    assert shown == {"Location": masked, "X-Other": "a?token=1"}


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


def encode_url(text: str) -> list[str]:
    quoted = [quote(text, safe=safe) for safe in ("", "/", "!'()*~", "!'()*~;,/?:@&=+$#")]
    lower = [re.sub("%..", lambda byte: byte[0].lower(), form) for form in quoted]
    return [*quoted, *lower, quote_plus(text)]


def encode_html(text: str) -> list[str]:
    forms = [html.escape(text), html.escape(text, quote=False)]
    return [*forms, forms[0].replace("&#x27;", "&#39;"), forms[0].replace("&quot;", "&#34;")]


ENCODED = encrypt_headers({"X-Token": "a b&c/d=<ü>'\"e:f"}, ())
URL_SECRET = "https://a.example/p?page=2&access_token=s3cret-%C3%BC-token&x=1"


@pytest.mark.parametrize("encode", [encode_url, encode_html])
def test_an_echoed_secret_is_found_in_a_url_and_in_html(encode: Callable[[str], list[str]]) -> None:
    for form in encode("a b&c/d=<ü>'\"e:f"):
        outcome = redact_outcome(build_response(f"<i>{form}</i>".encode()), (), ENCODED)
        assert isinstance(outcome, Responded)
        assert outcome.body == f"<i>{MASK}</i>".encode(), form


@pytest.mark.parametrize("before", ["", "u", "us", "use", "user:"])
@pytest.mark.parametrize("after", ["", "x", "xy", "xyz"])
def test_an_echoed_secret_is_found_in_base64_at_every_position(before: str, after: str) -> None:
    secret = "c4n4ry>5ecret?"
    sent = encrypt_headers({"X-Token": secret}, ())
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        outcome = redact_outcome(build_response(encode(f"{before}{secret}{after}".encode())), (), sent)
        assert isinstance(outcome, Responded)
        rest = outcome.body.replace(MASK.encode(), b"").rstrip(b"=")
        assert MASK.encode() in outcome.body
        assert len(rest) <= len(f"{before}{after}") * 8 / 6 + 4, "little more than what is around it is left"


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=8, max_size=40), st.text(max_size=5))
def test_base64_of_any_secret_is_masked(secret: str, before: str) -> None:
    sent = encrypt_headers({"X-Token": secret}, ())
    encoded = base64.b64encode(before.encode(errors="replace") + secret.encode())
    outcome = redact_outcome(build_response(encoded), (), sent)
    assert isinstance(outcome, Responded)
    assert MASK.encode() in outcome.body


@pytest.mark.parametrize("echo", ["s3cret-%C3%BC-token", "s3cret-ü-token", "s3cret-%c3%bc-token"])
def test_a_secret_of_the_query_is_masked_in_an_echo(echo: str) -> None:
    outcome = redact_outcome(build_response(f"you sent {echo}".encode()), (), {}, URL_SECRET)
    assert isinstance(outcome, Responded)
    assert outcome.body == f"you sent {MASK}".encode()


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        (URL_SECRET, f"https://a.example/p?page=2&access_token={MASK}&x=1"),
        ("http://a/?key=1", f"http://a/?key={MASK}"),
        ("http://a/?X-Amz-Signature=1&X-Amz-Date=2#f", f"http://a/?X-Amz-Signature={MASK}&X-Amz-Date=2#f"),
        ("http://a/?sv=1;sig=a%2Fb", f"http://a/?sv=1;sig={MASK}"),
        ("http://a/?api%5Fkey=1", f"http://a/?api%5Fkey={MASK}"),
        ("http://a/?token=&idempotency_key=2&q", "http://a/?token=&idempotency_key=2&q"),
        ("http://a/token=1", "http://a/token=1"),
        ("http://a/#access_token=1&state=2", f"http://a/#access_token={MASK}&state=2"),
        ("http://a/p;token=1", f"http://a/p;token={MASK}"),
    ],
)
def test_query_parameters_with_secret_names_are_masked(url: str, masked: str) -> None:
    assert mask_query(url) == masked


def build_failure(reason: str) -> Errored:
    message = f"a.example did not send a valid HTTP response: {reason}."
    details: dict[str, str | int] = {"phase": "receiving the response", "curl_code": 8, "reason": reason}
    return Errored("key", ErrorKind.PROTOCOL, message, details, Timings(), True)


def test_a_secret_that_an_error_message_quotes_is_masked() -> None:
    outcome = redact_outcome(build_failure("unknown coding c4n4ry-5ecret"), (), SENT)
    assert isinstance(outcome, Errored)
    assert outcome.message == f"a.example did not send a valid HTTP response: unknown coding {MASK}."
    assert outcome.details == {**build_failure("").details, "reason": f"unknown coding {MASK}"}


def test_the_beginning_of_a_secret_at_the_end_of_a_message_is_masked() -> None:
    outcome = redact_outcome(build_failure("unknown coding c4n4ry-5ec"), (), SENT)
    assert isinstance(outcome, Errored)
    assert "c4n4" not in f"{outcome.message} {outcome.details}"


def test_other_errors_stay_as_they_are() -> None:
    failure = build_failure("bad chunk")
    assert redact_outcome(failure, (), SENT) == failure


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

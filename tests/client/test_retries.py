"""The client retries only requests that are safe to repeat."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
import requests

from eventservice.client import ApiError, Client, Unreachable, Unsendable

CALL = {"serviceCallId": "1", "status": "Scheduled"}


class ScriptedSession(requests.Session):
    """A session that returns the given responses, or raises the given errors, and records the requests."""

    def __init__(self, *responses: Any) -> None:
        super().__init__()
        self.responses = list(responses)
        self.pauses: list[float] = []
        self.requests: list[tuple[str, str, Any, dict[str, str]]] = []

    def request(self, method: Any, url: Any, *args: Any, **options: Any) -> requests.Response:
        self.requests.append((method, url, options["json"], options["headers"]))
        scripted = self.responses.pop(0)
        if isinstance(scripted, Exception):
            raise scripted
        status, body, headers = scripted
        response = requests.Response()
        response.status_code = status
        response._content = json.dumps(body).encode()
        response.headers.update(headers)
        return response


def build_response(status: int = 202, body: Any = CALL, **headers: str) -> Any:
    return status, body, {name.replace("_", "-"): value for name, value in headers.items()}


def build_client(*responses: Any) -> tuple[Client, ScriptedSession]:
    session = ScriptedSession(*responses)
    return Client("http://api.test/", "t", "key", session=session, sleep=session.pauses.append), session


def test_a_submission_is_retried_with_the_same_key() -> None:
    client, session = build_client(requests.ConnectionError(), requests.Timeout(), build_response())
    assert client.submit("n", "GET", "http://a.test/") == CALL
    keys = {headers["Idempotency-Key"] for _, _, _, headers in session.requests}
    assert (len(session.requests), len(keys)) == (3, 1)
    assert session.pauses == [0.2, 0.4]


def test_two_submissions_have_two_keys() -> None:
    client, session = build_client(build_response(), build_response())
    for _ in range(2):
        client.submit("n", "GET", "http://a.test/")
    assert len({headers["Idempotency-Key"] for _, _, _, headers in session.requests}) == 2


@pytest.mark.parametrize("given", [{"idempotency_key": "own"}, {"idempotencyKey": "own"}])
def test_a_submission_uses_the_given_key(given: dict[str, Any]) -> None:
    client, session = build_client(build_response())
    client.submit("n", "GET", "http://a.test/", **given)
    _, _, body, headers = session.requests[0]
    assert headers["Idempotency-Key"] == "own"
    assert "idempotencyKey" not in body


def test_the_items_of_a_batch_keep_their_keys() -> None:
    client, session = build_client(requests.ConnectionError(), build_response(body={"items": []}))
    client.submit_batch([{"name": "a"}, {"name": "b", "idempotencyKey": "own"}])
    first, second = (body["items"] for _, _, body, _ in session.requests)
    assert first == second
    assert first[1]["idempotencyKey"] == "own"
    assert first[0]["idempotencyKey"]


def test_it_gives_up_after_the_last_retry() -> None:
    client, session = build_client(*[requests.ConnectionError("refused")] * 4)
    with pytest.raises(Unreachable, match="refused"):
        client.get("1")
    assert len(session.requests) == 4


def test_the_error_names_the_url_and_the_cause() -> None:
    with Client("http://127.0.0.1:9", "t", "key", retries=0) as client, pytest.raises(Unreachable) as error:
        client.get("1")
    address = "http://127.0.0.1:9/api/v1/tenants/t/service-calls/1"
    assert str(error.value) == f"GET {address}: no response (Connection refused)."


def test_a_cancellation_is_not_retried() -> None:
    client, session = build_client(requests.ConnectionError())
    with pytest.raises(Unreachable):
        client.cancel("1")
    assert len(session.requests) == 1


ONCE = [
    lambda client: client.cancel("1"),
    lambda client: client.run_now("1"),
    lambda client: client.create_timer("t", "2030-01-01T00:00:00Z", "http://a.test/"),
    lambda client: client.update_timer("t", payload=1),
]
REPEATABLE = [
    lambda client: client.get("1"),
    lambda client: client.change("1", name="n"),
    lambda client: client.delete("1"),
    lambda client: client.tag("1", "t"),
    lambda client: client.untag("1", "t"),
    lambda client: client.replay("1"),
    lambda client: client.get_timer("t"),
    lambda client: client.delete_timer("t"),
    lambda client: client.declare_namespace("n"),
]


@pytest.mark.parametrize("act", ONCE, ids=["cancel", "run now", "create timer", "update timer"])
def test_unsafe_requests_are_not_retried_when_their_outcome_is_unknown(act: Any) -> None:
    unknown = {"code": "outcome_unknown", "detail": "It is not known whether it was stored."}
    client, session = build_client(build_response(503, unknown, Retry_After="1"))
    with pytest.raises(ApiError, match="not known"):
        act(client)
    assert len(session.requests) == 1


@pytest.mark.parametrize("act", ONCE, ids=["cancel", "run now", "create timer", "update timer"])
def test_rate_limited_requests_are_retried(act: Any) -> None:
    client, session = build_client(build_response(429, {}), build_response(200))
    act(client)
    assert len(session.requests) == 2


@pytest.mark.parametrize("act", REPEATABLE)
def test_requests_that_are_safe_to_repeat_are_retried_when_their_outcome_is_unknown(act: Any) -> None:
    client, session = build_client(
        requests.ConnectionError(), build_response(503, {"code": "outcome_unknown"}), build_response(200)
    )
    act(client)
    assert len(session.requests) == 3


def test_a_submission_with_an_unknown_outcome_is_retried_with_its_key() -> None:
    client, session = build_client(build_response(503, {}), build_response())
    assert client.submit("n", "GET", "http://a.test/", idempotency_key="own") == CALL
    assert [headers["Idempotency-Key"] for _, _, _, headers in session.requests] == ["own", "own"]


def test_an_item_without_a_key_gets_one() -> None:
    client, session = build_client(build_response(body={"items": []}))
    client.submit_batch([{"name": "a", "idempotencyKey": None}])
    assert session.requests[0][2]["items"][0]["idempotencyKey"]


def test_it_waits_with_the_given_sleep_function() -> None:
    client, session = build_client(build_response(200), build_response(200, {**CALL, "status": "Succeeded"}))
    assert client.wait("1", 3600.0)["status"] == "Succeeded"
    assert session.pauses == [0.5]


@pytest.mark.parametrize(
    ("url", "key", "body"),
    [
        ("http://", "key", None),
        ("http://127.0.0.1:99999", "key", None),
        ("http://a..b", "key", None),
        ("http://127.0.0.1:9", "ключ", None),
        ("http://127.0.0.1:9", "hush\n", None),
        ("http://127.0.0.1:9", "key", float("nan")),
    ],
)
def test_an_invalid_request_is_reported_and_not_retried(url: str, key: str, body: Any) -> None:
    pauses: list[float] = []
    with Client(url, "t", key, sleep=pauses.append) as client, pytest.raises(Unsendable) as error:
        client.submit("n", "GET", "http://a.test/", body=body)
    assert "was not sent" in str(error.value)
    assert "hush" not in str(error.value)
    assert pauses == []


def test_an_incomplete_response_is_requested_again() -> None:
    client, session = build_client(requests.exceptions.ChunkedEncodingError("cut"), build_response(200))
    assert client.get("1") == CALL
    assert len(session.requests) == 2


def test_a_response_that_is_not_json_is_an_error() -> None:
    client, session = build_client(build_response(200))
    html = requests.Response()
    html.status_code, html._content = 200, b"<html>"
    session.request = lambda *args, **options: html  # type: ignore[method-assign]
    with pytest.raises(ApiError, match="did not return JSON"):
        client.get("1")


def test_it_respects_retry_after() -> None:
    client, session = build_client(
        build_response(429, {}, Retry_After="7"), build_response(503, {}), build_response(200)
    )
    assert client.get("1") == CALL
    assert session.pauses == [7.0, 0.4]


@pytest.mark.parametrize("status", [429, 503])
def test_it_waits_as_long_as_a_rate_limit_takes_to_refill(status: int) -> None:
    client, session = build_client(build_response(status, {}, Retry_After="60"), build_response(200))
    assert client.get("1") == CALL
    assert session.pauses == [60.0]


@pytest.mark.parametrize("status", [429, 503])
def test_a_longer_pause_is_left_to_the_caller(status: int) -> None:
    client, session = build_client(build_response(status, {}, Retry_After="61"))
    with pytest.raises(ApiError) as error:
        client.get("1")
    assert (error.value.retry_after, session.pauses) == (61.0, [])


def test_it_asks_no_sooner_than_the_service_wants_while_it_waits() -> None:
    client, session = build_client(
        build_response(200, Retry_After="3"), build_response(200, {**CALL, "status": "Succeeded"})
    )
    assert client.wait("1", 3600.0)["status"] == "Succeeded"
    assert session.pauses == [3.0]


def test_an_error_lists_the_invalid_fields() -> None:
    problem = {
        "code": "invalid",
        "detail": "1 field is invalid.",
        "errors": [{"pointer": "/name", "detail": "is required"}],
        "correlationId": "c",
    }
    client, session = build_client(build_response(400, problem))
    with pytest.raises(ApiError) as error:
        client.submit("", "GET", "http://a.test/")
    assert (error.value.status, error.value.code, error.value.correlation_id) == (400, "invalid", "c")
    assert "/name is required" in str(error.value)
    assert len(session.requests) == 1


@pytest.mark.parametrize("body", ["no json at all", [], None])
def test_an_error_without_a_problem_document_is_reported_too(body: Any) -> None:
    client, _ = build_client(build_response(502, body))
    with pytest.raises(ApiError, match="502"):
        client.get("1")


def test_pages_are_fetched_only_as_far_as_needed() -> None:
    pages: list[Any] = [
        build_response(200, {"items": [1, 2], "nextCursor": "c"}),
        build_response(200, {"items": [3], "nextCursor": None}),
    ]
    numbers: list[Any] = list(build_client(*pages)[0].list())
    assert numbers == [1, 2, 3]
    client, session = build_client(*pages)
    numbers = list(client.list(max_items=2))
    assert numbers == [1, 2]
    assert len(session.requests) == 1


def test_no_page_is_fetched_for_zero_items() -> None:
    client, session = build_client()
    assert list(client.list(max_items=0)) == []
    assert session.requests == []


def test_errors_do_not_reveal_the_key() -> None:
    client, _ = build_client(requests.ConnectionError("x"))
    with pytest.raises(Unreachable) as error:
        client.run_now("1")
    assert "Bearer" not in str(error.value)


@pytest.mark.parametrize("code", ["pending_ceiling", "storage_limit"])
def test_a_limit_on_what_is_stored_is_reported_at_once(code: str) -> None:
    client, session = build_client(build_response(429, {"code": code, "detail": "Full."}, Retry_After="5"))
    with pytest.raises(ApiError, match=code):
        client.submit("n", "GET", "http://a.test/")
    assert (len(session.requests), session.pauses) == (1, [])


KEY = uuid.UUID("01900000-0000-7000-8000-000000000001")


@pytest.mark.parametrize(("given", "sent"), [("", ""), (0, "0"), (17, "17"), (KEY, str(KEY)), ("a", "a")])
def test_a_given_key_is_sent_whatever_it_is(given: Any, sent: str) -> None:
    """The service refuses an empty one. A generated one in its place would make two calls of a repeat."""
    client, session = build_client(build_response(), build_response(), build_response())
    client.submit("n", "GET", "http://a.test/", idempotency_key=given)
    client.replay("1", idempotency_key=given)
    client.submit_batch([{"idempotencyKey": given}])
    (_, _, _, submitted), (_, _, _, replayed), (_, _, batch, _) = session.requests
    assert [submitted["Idempotency-Key"], replayed["Idempotency-Key"]] == [sent, sent]
    assert batch["items"] == [{"idempotencyKey": sent}]


@pytest.mark.parametrize("key", [" a", "a\n", "clé", "a b"])
def test_a_key_that_the_service_would_refuse_is_named(key: str) -> None:
    client, _ = build_client()
    with pytest.raises(Unsendable, match="must be 1 to 255 visible ASCII characters"):
        client.submit("n", "GET", "http://a.test/", idempotency_key=key)

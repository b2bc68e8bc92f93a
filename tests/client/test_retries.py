"""The client sends again what may be sent again, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests

from eventservice.client import ApiError, Client, Unreachable, Unsendable

CALL = {"serviceCallId": "1", "status": "Scheduled"}


class Answers(requests.Session):
    """A session that answers as it is told, and notes what it was asked."""

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.answers = list(answers)
        self.pauses: list[float] = []
        self.asked: list[tuple[str, str, Any, dict[str, str]]] = []

    def request(self, method: Any, url: Any, *args: Any, **options: Any) -> requests.Response:
        self.asked.append((method, url, options["json"], options["headers"]))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        status, body, headers = answer
        response = requests.Response()
        response.status_code = status
        response._content = json.dumps(body).encode()
        response.headers.update(headers)
        return response


def answer(status: int = 202, body: Any = CALL, **headers: str) -> Any:
    return status, body, {name.replace("_", "-"): value for name, value in headers.items()}


def made(*answers: Any) -> tuple[Client, Answers]:
    session = Answers(*answers)
    return Client("http://api.test/", "t", "key", session=session, sleep=session.pauses.append), session


def test_a_submission_is_sent_again_with_the_same_key() -> None:
    client, session = made(requests.ConnectionError(), requests.Timeout(), answer())
    assert client.submit("n", "GET", "http://a.test/") == CALL
    keys = {headers["Idempotency-Key"] for _, _, _, headers in session.asked}
    assert (len(session.asked), len(keys)) == (3, 1)
    assert session.pauses == [0.2, 0.4]


def test_two_submissions_have_two_keys() -> None:
    client, session = made(answer(), answer())
    for _ in range(2):
        client.submit("n", "GET", "http://a.test/")
    assert len({headers["Idempotency-Key"] for _, _, _, headers in session.asked}) == 2


@pytest.mark.parametrize("given", [{"idempotency_key": "own"}, {"idempotencyKey": "own"}])
def test_a_submission_has_the_key_that_it_was_given(given: dict[str, Any]) -> None:
    client, session = made(answer())
    client.submit("n", "GET", "http://a.test/", **given)
    _, _, body, headers = session.asked[0]
    assert headers["Idempotency-Key"] == "own"
    assert "idempotencyKey" not in body


def test_the_items_of_a_batch_keep_their_keys() -> None:
    client, session = made(requests.ConnectionError(), answer(body={"items": []}))
    client.submit_batch([{"name": "a"}, {"name": "b", "idempotencyKey": "own"}])
    first, second = (body["items"] for _, _, body, _ in session.asked)
    assert first == second
    assert first[1]["idempotencyKey"] == "own"
    assert first[0]["idempotencyKey"]


def test_it_gives_up_in_the_end() -> None:
    client, session = made(*[requests.ConnectionError("refused")] * 4)
    with pytest.raises(Unreachable, match="refused"):
        client.get("1")
    assert len(session.asked) == 4


def test_it_tells_what_was_called_and_why_there_was_no_answer() -> None:
    with Client("http://127.0.0.1:9", "t", "key", retries=0) as client, pytest.raises(Unreachable) as broken:
        client.get("1")
    address = "http://127.0.0.1:9/api/v1/tenants/t/service-calls/1"
    assert str(broken.value) == f"GET {address}: no answer (Connection refused)."


def test_a_cancellation_is_sent_once() -> None:
    client, session = made(requests.ConnectionError())
    with pytest.raises(Unreachable):
        client.cancel("1")
    assert len(session.asked) == 1


ONCE = [
    lambda client: client.cancel("1"),
    lambda client: client.run_now("1"),
    lambda client: client.create_timer("t", "2030-01-01T00:00:00Z", "http://a.test/"),
    lambda client: client.update_timer("t", payload=1),
    lambda client: client.delete_timer("t"),
]


@pytest.mark.parametrize(
    "act", ONCE, ids=["cancel", "run now", "create timer", "update timer", "delete timer"]
)
def test_what_could_be_done_twice_is_not_repeated_when_its_outcome_is_not_known(act: Any) -> None:
    unknown = {"code": "outcome_unknown", "detail": "It is not known whether it was stored."}
    client, session = made(answer(503, unknown, Retry_After="1"))
    with pytest.raises(ApiError, match="not known"):
        act(client)
    assert len(session.asked) == 1


@pytest.mark.parametrize(
    "act", ONCE, ids=["cancel", "run now", "create timer", "update timer", "delete timer"]
)
def test_what_was_refused_unread_is_sent_again(act: Any) -> None:
    client, session = made(answer(429, {}), answer(200))
    act(client)
    assert len(session.asked) == 2


def test_a_submission_is_repeated_with_its_key_when_its_outcome_is_not_known() -> None:
    client, session = made(answer(503, {}), answer())
    assert client.submit("n", "GET", "http://a.test/", idempotency_key="own") == CALL
    assert [headers["Idempotency-Key"] for _, _, _, headers in session.asked] == ["own", "own"]


def test_an_item_without_a_key_of_its_own_gets_one() -> None:
    client, session = made(answer(body={"items": []}))
    client.submit_batch([{"name": "a", "idempotencyKey": None}])
    assert session.asked[0][2]["items"][0]["idempotencyKey"]


def test_it_waits_with_the_sleep_that_it_was_given() -> None:
    client, session = made(answer(200), answer(200, {**CALL, "status": "Succeeded"}))
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
def test_what_cannot_be_sent_is_told_apart_and_not_tried_again(url: str, key: str, body: Any) -> None:
    pauses: list[float] = []
    with Client(url, "t", key, sleep=pauses.append) as client, pytest.raises(Unsendable) as wrong:
        client.submit("n", "GET", "http://a.test/", body=body)
    assert "nothing was sent" in str(wrong.value)
    assert "hush" not in str(wrong.value)
    assert pauses == []


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    client, session = made(requests.exceptions.ChunkedEncodingError("cut"), answer(200))
    assert client.get("1") == CALL
    assert len(session.asked) == 2


def test_an_answer_that_is_not_json_is_not_the_apis() -> None:
    client, session = made(answer(200))
    response = requests.Response()
    response.status_code, response._content = 200, b"<html>"
    session.request = lambda *args, **options: response  # type: ignore[method-assign]
    with pytest.raises(ApiError, match="is the API there"):
        client.get("1")


def test_it_comes_back_when_it_is_told_to() -> None:
    client, session = made(answer(429, {}, Retry_After="7"), answer(503, {}), answer(200))
    assert client.get("1") == CALL
    assert session.pauses == [7.0, 0.4]


def test_a_refusal_tells_what_is_wrong() -> None:
    problem = {
        "code": "invalid",
        "detail": "One value is not as required.",
        "errors": [{"pointer": "/name", "detail": "is required"}],
        "correlationId": "c",
    }
    client, session = made(answer(400, problem))
    with pytest.raises(ApiError) as refused:
        client.submit("", "GET", "http://a.test/")
    assert (refused.value.status, refused.value.code, refused.value.correlation_id) == (400, "invalid", "c")
    assert "/name is required" in str(refused.value)
    assert len(session.asked) == 1


@pytest.mark.parametrize("body", ["no json at all", [], None])
def test_a_refusal_by_something_else_is_one_too(body: Any) -> None:
    client, _ = made(answer(502, body))
    with pytest.raises(ApiError, match="502"):
        client.get("1")


def test_pages_are_followed_as_far_as_they_are_wanted() -> None:
    pages: list[Any] = [
        answer(200, {"items": [1, 2], "nextCursor": "c"}),
        answer(200, {"items": [3], "nextCursor": None}),
    ]
    numbers: list[Any] = list(made(*pages)[0].list())
    assert numbers == [1, 2, 3]
    client, session = made(*pages)
    numbers = list(client.list(most=2))
    assert numbers == [1, 2]
    assert len(session.asked) == 1


def test_nothing_is_asked_for_where_nothing_is_wanted() -> None:
    client, session = made()
    assert list(client.list(most=0)) == []
    assert session.asked == []


def test_nothing_is_said_of_the_key() -> None:
    client, _ = made(requests.ConnectionError("x"))
    with pytest.raises(Unreachable) as broken:
        client.run_now("1")
    assert "Bearer" not in str(broken.value)

"""The client sends again what may be sent again, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests

from eventservice.client import ApiError, Client, Unreachable

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


def test_a_cancellation_is_sent_once() -> None:
    client, session = made(requests.ConnectionError())
    with pytest.raises(Unreachable):
        client.cancel("1")
    assert len(session.asked) == 1


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


def test_the_key_is_sent_and_nothing_of_it_is_said() -> None:
    client, session = made(requests.ConnectionError("x"))
    with pytest.raises(Unreachable) as broken:
        client.run_now("1")
    assert session.asked[0][3]["Authorization"] == "Bearer key"
    assert "Bearer" not in str(broken.value)

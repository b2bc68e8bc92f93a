"""Every error is a problem (RFC 9457), and no request can cause an internal error."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from eventservice.api.parsers import is_storable, parse_json
from eventservice.api.problems import Problem
from orchestration import lifecycle
from tests.api.conftest import SPEC, Api, build_submission, get_errors
from tests.api.endpoints import list_endpoints

pytestmark = pytest.mark.django_db

MEMBERS = {"type", "title", "status", "detail", "instance", "code", "correlationId", "errors"}


def assert_problem(response: Any, status: int, code: str) -> None:
    assert (response.status_code, response["Content-Type"]) == (status, "application/problem+json"), (
        response.content
    )
    problem = response.json()
    assert set(problem) == MEMBERS
    assert (problem["status"], problem["code"]) == (status, code), problem
    assert problem["correlationId"] == response["X-Correlation-Id"]


@pytest.mark.parametrize(
    "path", ["/api", "/api/", "/api/v1", "/api/v1/nothing", "/api/v1/tenants/x", "/api/v1/stats/"]
)
@pytest.mark.parametrize("accept", ["*/*", "text/html"])
def test_an_unknown_path_is_not_found(acme: Api, path: str, accept: str) -> None:
    if path == "/api" and accept == "text/html":
        pytest.skip("outside the API a browser may be given a page")
    assert_problem(acme.get(path, headers={"Accept": accept}), 404, "not_found")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE"])
def test_an_unknown_method_is_refused(acme: Api, method: str) -> None:
    response = acme(method, "/service-calls")
    assert_problem(response, 405, "method_not_allowed")
    assert response["Allow"] == "GET, POST, HEAD, OPTIONS"


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/api/v1/openapi.json"])
def test_read_only_pages_refuse_other_methods(path: str) -> None:
    client = Client(enforce_csrf_checks=True)
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        response = client.generic(method, path)
        assert_problem(response, 405, "method_not_allowed")
        assert response["Allow"] == "GET, HEAD"
    assert client.head(path).status_code == client.get(path).status_code


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("text/plain", {}),
        ("", {}),
        ("application/x-www-form-urlencoded", {}),
        ("multipart/form-data; boundary=x", {}),
        ("application/json; charset=utf-16", {}),
        ("application/json", {"Content-Encoding": "gzip"}),
    ],
)
def test_a_body_of_another_content_type_is_refused(acme: Api, kind: str, more: dict[str, str]) -> None:
    response = acme("POST", "/service-calls", raw=b"{}", headers={"Content-Type": kind, **more})
    assert_problem(response, 415, "unsupported_media_type")


def test_a_body_that_is_too_large_is_refused(acme: Api, settings: Any) -> None:
    settings.API_MAX_REQUEST_BYTES = 2000
    assert_problem(acme("POST", "/service-calls", raw=b" " * 2001), 413, "too_large")


def test_a_body_of_unknown_length_is_refused(acme: Api) -> None:
    response = acme(
        "POST", "/service-calls", headers={"Transfer-Encoding": "chunked", "Content-Type": "application/json"}
    )
    assert_problem(response, 411, "length_required")


MALFORMED = {
    "nothing": b"",
    "half": b'{"name": ',
    "two documents": b"{} {}",
    "not UTF-8": b'{"name": "\xff"}',
    "UTF-16": '{"name": "x"}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "NaN": b'{"timeoutSeconds": NaN}',
    "Infinity": b'{"timeoutSeconds": -Infinity}',
    "a float beyond all bounds": b'{"timeoutSeconds": 1e999}',
    "a whole number of ten thousand digits": b'{"timeoutSeconds": ' + b"9" * 10_000 + b"}",
    "arrays in arrays": b"[" * 200_000,
    "objects in objects": b'{"a":' * 100_000,
    "a name twice": b'{"name": "a", "name": "b"}',
    "an escaped NUL": b'{"name": "a\\u0000"}',
    "a NUL in a name": b'{"a\\u0000": 1}',
    "a raw NUL": b'{"name": "a\x00"}',
    "half a surrogate pair": b'{"name": "\\ud800"}',
    "the other half": b'{"requestSpec": {"body": ["\\udfff"]}}',
    "two first halves": b'{"name": "\\ud83d\\ud83d\\ude00"}',
    "two second halves": b'{"name": "\\ud83d\\ude00\\ude00"}',
    "halves apart": b'{"name": "\\ud83d\\\\\\ude00"}',
    "half after a backslash": b'{"name": "\\\\\\ud83d"}',
    "single quotes": b"{'name': 'x'}",
}


ESCAPED = {
    "a surrogate pair": (r"\ud83d\ude00", "\U0001f600"),
    "two surrogate pairs": (r"\uD83D\uDE00\ud83d\ude01", "\U0001f600\U0001f601"),
    "a backslash before what looks like an escape": (r"\\u0000", "\\u0000"),
    "a backslash between what looks like a pair": (r"\\ud83d\\ude00", "\\ud83d\\ude00"),
    "a plain letter": (r"\u0041", "A"),
}


@pytest.mark.parametrize(("escaped", "text"), ESCAPED.values(), ids=ESCAPED)
def test_other_escapes_are_accepted(escaped: str, text: str) -> None:
    assert parse_json(f'{{"name": "{escaped}"}}') == {"name": text}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_a_body_that_is_not_json_is_refused(acme: Api, raw: bytes) -> None:
    for path in ("/service-calls", "/service-calls/batch", "/timers/create"):
        assert_problem(
            acme("POST", path, raw=raw, headers={"Content-Type": "application/json"}), 400, "malformed_json"
        )


@pytest.mark.parametrize("document", [None, True, 0, 1.5, "text", [], [{}]])
def test_a_document_that_is_not_an_object_is_refused(acme: Api, document: Any) -> None:
    for method, path in (
        ("POST", "/service-calls"),
        ("POST", "/service-calls/batch"),
        ("POST", "/timers/get"),
    ):
        assert get_errors(acme(method, path, raw=json.dumps(document).encode())) == {"": "must be an object"}


WRONG: list[Any] = [
    None,
    True,
    0,
    -1,
    10**30,
    1e300,
    "",
    "x" * 100_000,
    "\n",
    "\u2028",
    [],
    [[]],
    {},
    {"a": {}},
    [None],
]


@pytest.mark.parametrize("name", [*build_submission(), "dueAt", "tags", "namespace", "idempotencyKey", "serviceCallId",
                                  "retryPolicy", "timeoutSeconds", "delivery"])  # fmt: skip
def test_a_member_of_a_wrong_type_is_refused(acme: Api, name: str) -> None:
    for value in WRONG:
        document = build_submission()
        if name == "dueAt":
            del document["delay"]
        response = acme.post("/service-calls", {**document, name: value})
        if response.status_code != 202:
            assert_problem(response, 400, "invalid")
            assert all(
                pointer == f"/{name}" or pointer.startswith(f"/{name}/") for pointer in get_errors(response)
            )


@pytest.mark.parametrize("name", [*SPEC, "more"])
def test_a_member_of_the_request_with_a_wrong_type_is_refused(acme: Api, name: str) -> None:
    for value in WRONG:
        response = acme.post("/service-calls", build_submission(requestSpec={**SPEC, name: value}))
        if response.status_code != 202:
            assert_problem(response, 400, "invalid")
            assert all(pointer.startswith(f"/requestSpec/{name}") for pointer in get_errors(response))


def test_an_instance_is_the_occurrence_and_not_the_path(acme: Api) -> None:
    correlation = "01900000-0000-7000-8000-00000000abcd"
    response = acme.get("/nothing", headers={"X-Correlation-Id": correlation})
    assert response.json()["instance"] == f"urn:uuid:{correlation}"
    assert response["X-Correlation-Id"] == correlation


def test_an_unexpected_exception_is_a_problem_and_is_logged(acme: Api, monkeypatch: Any, caplog: Any) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("a detail that is nobody's business")

    monkeypatch.setattr(lifecycle, "submit", fail)
    with caplog.at_level(logging.ERROR):
        response = acme.post("/service-calls", build_submission())
    assert_problem(response, 500, "internal_error")
    assert b"nobody" not in response.content
    assert "RuntimeError" in caplog.text


def test_a_request_above_the_rate_limit_gets_retry_after(acme: Api, operator: Api) -> None:
    operator("PATCH", "", {"requestsPerMinute": 3})
    answers = [acme.get("/service-calls") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429] or answers[
        -1
    ].status_code == 429
    assert_problem(answers[-1], 429, "too_many_requests")
    assert 1 <= int(answers[-1]["Retry-After"]) <= 20
    assert answers[0]["RateLimit-Policy"] == '"tenant";q=3;w=60'
    assert answers[-1]["RateLimit"].startswith('"tenant";r=0;t=')


def test_a_tenant_at_its_pending_limit_gets_429(acme: Api, operator: Api) -> None:
    operator("PATCH", "", {"maxPending": 2})
    acme.submit()
    acme.submit()
    for response in (
        acme.post("/service-calls", build_submission()),
        acme.post("/service-calls/batch", {"items": [build_submission()]}),
    ):
        assert_problem(response, 429, "pending_ceiling")
        assert response["Retry-After"]


# --- the check of escapes -----------------------------------------------------------------------------------------

PARTS = (
    r"\u0041",
    r"\u0000",
    r"\ud83d",
    r"\ude00",
    r"\uD83D",
    r"\uDE00",
    r"\\",
    r"\n",
    "a",
    "u0000",
    r"\uabcd",
)


@given(st.lists(st.sampled_from(PARTS), max_size=8))
def test_escapes_are_refused_if_and_only_if_they_cannot_be_stored(parts: list[str]) -> None:
    text = f'"{"".join(parts)}"'
    found = json.loads(text)
    try:
        assert parse_json(text) == found
        assert is_storable(found)
    except Problem:
        assert not is_storable(found)


@pytest.mark.slow
@pytest.mark.parametrize("part", [r"\u0041", r"\ud83d\ude00", r"\\", "a", r"\\u0000"])
def test_escapes_are_checked_in_linear_time(part: str) -> None:
    text = f'"{part * (16_000_000 // len(part))}\\u0041"'
    begin = time.process_time()
    json.loads(text)
    decoded = time.process_time() - begin
    parse_json(text)
    assert time.process_time() - begin - decoded < 4 * decoded + 0.5


# --- unknown parameters -------------------------------------------------------------------------------------------


def test_every_method_refuses_parameters_that_it_does_not_know(acme: Api, operator: Api) -> None:
    known = {
        "tenant_id": acme.tenant.tenant_id,
        "service_call_id": acme.submit()["serviceCallId"],
        "correlation_id": acme.submit()["correlationId"],
        "tag": "x",
        "name": "default",
        "key_id": operator.post("/api-keys", {"scopes": ["read"]}).json()["keyId"],
    }
    timer = {"id": "t", "executeAt": "2030-01-01T00:00:00Z", "callbackUrl": "http://target.test/"}
    acme.post("/timers/create", timer)
    before = operator.get("/service-calls").json()
    for endpoint in list_endpoints():
        if endpoint.route.endswith(("openapi.json", "docs")):
            continue
        response = operator(endpoint.method, endpoint.path(**known) + "?atomic=true")
        assert get_errors(response) == {"/query/atomic": "is not a known field"}, endpoint
    assert operator.get("/service-calls").json() == before


def test_what_cannot_be_canceled_says_what_can(acme: Api) -> None:
    path = f"/service-calls/{acme.submit()['serviceCallId']}"
    acme.post(f"{path}/cancel")
    for action, allowed in (
        ("cancel", "be canceled: it must be Scheduled or Running."),
        ("run-now", "be run now: it must be Scheduled."),
    ):
        detail = acme.post(f"{path}/{action}").json()["detail"]
        assert detail == f"A call that is Canceled cannot {allowed}"
    detail = acme("PATCH", path, {"dueAt": "2031-01-01T00:00:00Z"}).json()["detail"]
    assert detail == "A call that is Canceled cannot be rescheduled: it must be Scheduled."

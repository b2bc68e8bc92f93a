"""Requests to a Host that is not served, and the headers that every response has."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.test import Client

from tests.api.conftest import Api

pytestmark = pytest.mark.django_db

STRANGE_HOST = {"Host": "10.1.2.3:8000"}
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
@pytest.mark.parametrize("host", ["10.1.2.3:8000", "not a host"])
def test_probes_and_scrapers_may_use_any_host(
    client: Client, path: str, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = client.get(path, headers={"Host": host})
    assert answer.status_code == (503 if path == "/readyz" else 200)
    assert "DisallowedHost" not in caplog.text


@pytest.mark.parametrize("path", ["/", "/api/v1/stats", "/static/console/console.css", "/livez/"])
def test_a_host_that_is_not_served_is_a_problem_that_names_the_setting(
    client: Client, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        answer = client.get(path, headers={**STRANGE_HOST, "Accept": "text/html"})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert answer.json()["detail"] == (
        "The Host '10.1.2.3:8000' is not served here: it is not one of the setting ALLOWED_HOSTS."
    )
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is None


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("/livez", {}),
        ("/readyz", {}),
        ("/nothing", {}),
        ("/nothing", {"Accept": "text/html"}),
        ("/api/v1/stats", {}),
        ("/api/v1/openapi.json", {}),
        ("/api/v1/docs", {"Accept": "text/html"}),
        ("/login/", {"Accept": "text/html"}),
        ("/static/console/console.css", {}),
        ("/", STRANGE_HOST),
        ("/api/v1/stats?%00", {}),
    ],
)
def test_every_response_has_the_security_headers(client: Client, path: str, given: dict[str, str]) -> None:
    answer = client.get(path, headers=given)
    assert {name: answer.get(name) for name in HEADERS} == HEADERS
    assert "X-Correlation-Id" in answer
    answer.close()  # the file that it may stream


@pytest.mark.parametrize("query", ["", "?script=", "?script=1"])
def test_the_page_of_the_documentation_and_its_script_are_not_cached(acme: Api, query: str) -> None:
    answer: Any = acme.get(f"/api/v1/docs{query}", headers={"Authorization": "", "Accept": "*/*"})
    assert (answer.status_code, answer["Cache-Control"]) == (200, "no-store")

"""Each error response is logged in one line, with its correlation id."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client
from django.urls import path

from eventservice.kernel.logging import build_logging_config
from orchestration import lifecycle
from tests.api.conftest import Api, build_submission

pytestmark = pytest.mark.django_db

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    config = build_logging_config("INFO", "json")["formatters"]["structured"]
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(config.pop("()")(**config))
    logging.getLogger().addHandler(handler)
    yield lambda: [json.loads(line) for line in written.getvalue().splitlines()]
    logging.getLogger().removeHandler(handler)


def find_line(response: Any, lines: Lines) -> dict[str, Any]:
    (line,) = lines()
    assert line["correlation_id"] == response["X-Correlation-Id"]
    return line


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/service-calls?limit=x", 400),
        ("GET", "/nothing", 404),
        ("GET", "/api/v1/nothing", 404),
        ("DELETE", "/service-calls", 405),
        ("GET", "/service-calls?" + "&" * 1001, 400),
    ],
)
def test_a_refused_request_is_logged_once(
    acme: Api, lines: Lines, method: str, path: str, status: int
) -> None:
    response = acme(method, path)
    assert response.status_code == status
    assert find_line(response, lines)["level"] == "warning"


def test_an_unexpected_exception_is_logged_once(
    acme: Api, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(lifecycle, "submit", fail)
    line = find_line(acme.post("/service-calls", build_submission()), lines)
    assert (line["level"], line["event"]) == ("error", "request_failed")
    assert "RuntimeError" in line["exception"]
    assert line["tenant_id"] == str(acme.tenant.tenant_id)


def test_a_log_line_names_no_other_tenant(acme: Api, lines: Lines) -> None:
    acme.submit()
    assert "tenant_id" not in find_line(acme("GET", "/api/v1/nothing"), lines)


def raise_error(request: Any) -> HttpResponse:
    raise RuntimeError


urlpatterns = [path("api/broken", raise_error)]


@pytest.mark.urls(__name__)
def test_a_bug_outside_the_views_is_a_problem_too(lines: Lines) -> None:
    response = Client(raise_request_exception=False).get("/api/broken")
    assert response.status_code == 500
    assert "RuntimeError" in find_line(response, lines)["exception"]


def test_a_successful_response_logs_no_error(acme: Api, lines: Lines) -> None:
    acme.submit()
    assert lines() == []

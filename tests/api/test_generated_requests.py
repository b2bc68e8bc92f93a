"""Requests generated from the OpenAPI document never get a 5xx or an undescribed response (property P13)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import CHECKS
from schemathesis.specs.openapi import checks as _registers_them  # noqa: F401

from tests.api.conftest import Api, build_submission

pytestmark = pytest.mark.django_db

SHORT, LONG = 400, 10_000
ASKED_OF_EACH_ANSWER = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
]


@contextmanager
def one_connection() -> Iterator[None]:
    """Keep the test's connection open between requests, as Django's own test client does."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


def make_up(acme: Api, operator: Api, cases: int) -> int:
    """Send about so many requests, spread over all operations. Return how many were sent."""
    known = get_known_ids(acme)
    with one_connection():
        schema = schemathesis.openapi.from_wsgi("/api/v1/openapi.json", get_wsgi_application())
    operations = [operation.ok() for operation in schema.get_all_operations()]  # type: ignore[union-attr]
    each = -(-cases // len(operations))
    with one_connection():
        return sum(_ask_of(operation, known, (acme.key, operator.key), each) for operation in operations)


def _ask_of(operation: Any, known: dict[str, Any], keys: tuple[str, str], cases: int) -> int:
    checks = CHECKS.get_by_names(ASKED_OF_EACH_ANSWER)
    asked = 0

    @settings(
        max_examples=cases, deadline=None, database=None, phases=[Phase.generate], derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(), ours=st.booleans(), key=st.sampled_from(keys))
    def ask(case: Any, ours: bool, key: str) -> None:
        nonlocal asked
        asked += 1
        if ours and case.path_parameters:
            case.path_parameters |= {name: known[name] for name in known.keys() & case.path_parameters.keys()}
        answer = case.call(headers={"Authorization": f"Bearer {key}"})
        case.validate_response(answer, checks=checks)

    ask()
    return asked


def get_known_ids(acme: Api) -> dict[str, Any]:
    call = acme.submit(**build_submission(tags=["x"]))
    return {
        "tenantId": str(acme.tenant.tenant_id),
        "serviceCallId": call["serviceCallId"],
        "name": "default",
        "tag": "x",
    }


def test_hundreds_of_generated_requests(acme: Api, operator: Api) -> None:
    assert make_up(acme, operator, SHORT) >= SHORT / 2


@pytest.mark.slow
def test_ten_thousand_generated_requests(acme: Api, operator: Api) -> None:
    assert make_up(acme, operator, LONG) >= LONG / 2

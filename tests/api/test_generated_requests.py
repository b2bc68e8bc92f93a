"""Requests generated from the OpenAPI document never get a 5xx or an undescribed response (property P13). Those that it allows
are accepted, and those that it forbids are refused."""

from __future__ import annotations

import re
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
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS
from schemathesis.core.parameters import ParameterLocation
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
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
]
SENT_AS_GENERATED = (ParameterLocation.QUERY, ParameterLocation.BODY)
# Why a request is refused that the document allows: rules that JSON Schema cannot express, each in its description.
INEXPRESSIBLE = re.compile(
    r"must be a nextCursor of this list.*|must be from \S+ to \S+|must be a namespace of this tenant.*"
    r"|must be within ten years from now|must be in the future, .*|must not be given together with \w+"
    r"|(is|are) refused: .*|must have at most 20 items|must be the same as in the header .*|duplicates another header .*"
    r"|must be a host name or address, .*|must be a time with an offset.*|must be longer than 0s"
    r"|The body contains a NUL character or half of a surrogate pair.*|must not be nested more than .*"
)


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
    (forbidden,) = CHECKS.get_by_names(["negative_data_rejection"])
    asked = 0
    valid, invalid = (
        operation.as_strategy(generation_mode=mode)
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    )

    @settings(
        max_examples=cases, deadline=None, database=None, phases=[Phase.generate], derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(
        case=st.one_of(valid, valid, invalid) if _has_input(operation) else valid,
        ours=st.booleans(),
        key=st.sampled_from(keys),
    )
    def ask(case: Any, ours: bool, key: str) -> None:
        nonlocal asked
        asked += 1
        if ours and case.path_parameters:
            case.path_parameters |= {name: known[name] for name in known.keys() & case.path_parameters.keys()}
        answer = case.call(headers={"Authorization": f"Bearer {key}"})
        # A body beyond the bytes of a minute, which another request may have set low, is refused unread.
        must_refuse = _is_wrong(case) and answer.status_code != 413
        case.validate_response(
            answer, checks=[check for check in checks if check is not forbidden or must_refuse]
        )
        if case.meta.generation.mode == GenerationMode.POSITIVE and answer.status_code in (
            400,
            411,
            413,
            415,
        ):
            unexplained = [rule for rule in _list_rules(answer.json()) if not INEXPRESSIBLE.fullmatch(rule)]
            assert unexplained == [], (operation.label, case.query, case.body)

    ask()
    return asked


def _has_input(operation: Any) -> bool:
    """Return whether there is something that can be wrong: a body, or parameters of the query."""
    return bool(list(operation.body) or list(operation.query))


def _is_wrong(case: Any) -> bool:
    """Return whether the query or the body is not as described. We replace what the path and the headers have. Items of a batch
    are refused on their own."""
    made = [info.mode for where, info in case.meta.components.items() if where in SENT_AS_GENERATED]
    return GenerationMode.NEGATIVE in made and not case.operation.path.endswith("/batch")


def _list_rules(problem: Any) -> list[str]:
    return [error["detail"] for error in problem["errors"]] or [problem["detail"]]


def get_known_ids(acme: Api) -> dict[str, Any]:
    call = acme.submit(**build_submission(tags=["x"]))
    return {
        "tenantId": str(acme.tenant.tenant_id),
        "serviceCallId": call["serviceCallId"],
        "correlationId": call["correlationId"],
        "name": "default",
        "tag": "x",
    }


@pytest.fixture(autouse=True)
def no_waiting(settings: Any) -> None:
    """Let no request wait for a call to end: generated ones have `?wait=`, and the calls here never end."""
    settings.API_MAX_WAITERS = 0


def test_hundreds_of_generated_requests(acme: Api, operator: Api) -> None:
    assert make_up(acme, operator, SHORT) >= SHORT / 2


@pytest.mark.slow
def test_ten_thousand_generated_requests(acme: Api, operator: Api) -> None:
    assert make_up(acme, operator, LONG) >= LONG / 2

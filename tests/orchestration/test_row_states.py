"""The database refuses rows that disagree with their status, whoever writes them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import DataError, IntegrityError, ProgrammingError, connection, transaction

from orchestration.models import ServiceCall
from orchestration.states import Status
from tests.factories import EARLIER, HttpExecutionFactory, ServiceCallFactory

pytestmark = pytest.mark.django_db

SOME_ID = uuid.UUID(int=(0x0190_0001_0000_7000_8000 << 48) + 1)


def update(call: Any, **columns: Any) -> None:
    with transaction.atomic():
        ServiceCall.objects.for_tenant(call.tenant_id).update(**columns)


@pytest.mark.parametrize("status", Status.values)
def test_each_status_has_a_row_that_is_accepted(status: str) -> None:
    ServiceCallFactory(status=status)


@pytest.mark.parametrize(
    ("status", "columns", "constraint"),
    [
        ("Succeeded", {"finished_at": None}, "ck_service_calls_finished"),
        ("Canceled", {"finished_at": None}, "ck_service_calls_finished"),
        ("Scheduled", {"finished_at": EARLIER}, "ck_service_calls_finished"),
        ("Running", {"deadline_at": None}, "ck_service_calls_running"),
        ("Scheduled", {"deadline_at": EARLIER}, "ck_service_calls_running"),
        ("Running", {"execution_id": None}, "ck_service_calls_attempted"),
        ("Running", {"started_at": None}, "ck_service_calls_attempted"),
        ("Failed", {"attempt": 0}, "ck_service_calls_attempted"),
        ("Scheduled", {"execution_id": SOME_ID}, "ck_service_calls_attempted"),
        ("Scheduled", {"attempt": 1}, "ck_service_calls_attempted"),
        ("Failed", {"outcome_meta": None}, "ck_service_calls_outcome"),
        ("Scheduled", {"interruptions": 1}, "ck_service_calls_interruptions"),
    ],
)
def test_a_row_that_disagrees_with_its_status_is_refused(
    status: str, columns: dict[str, Any], constraint: str
) -> None:
    call = ServiceCallFactory(status=status)
    with pytest.raises(IntegrityError, match=constraint):
        update(call, **columns)


@pytest.mark.parametrize(
    "columns", [{"response_status": 200}, {"error_kind": "Timeout"}], ids=["response", "error"]
)
def test_an_attempt_in_progress_has_no_result(columns: dict[str, Any]) -> None:
    call = ServiceCallFactory(status="Running")
    key = {"tenant_id": call.tenant_id, "service_call_id": call.service_call_id}
    HttpExecutionFactory(**key)
    HttpExecutionFactory(**key, **columns)
    with pytest.raises(IntegrityError, match="ck_http_execution_log_finished"):
        HttpExecutionFactory(**key, finished_at=None, **columns)


def test_a_finished_attempt_has_a_result() -> None:
    call = ServiceCallFactory(status="Running")
    with pytest.raises(IntegrityError, match="ck_http_execution_log_finished"):
        HttpExecutionFactory(
            tenant_id=call.tenant_id, service_call_id=call.service_call_id, finished_at=EARLIER
        )


def write_raw(column: str, value: str | int) -> None:
    ServiceCallFactory()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"UPDATE service_calls SET {column} = %s", [value])


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises((DataError, IntegrityError)):
        write_raw("name", "n" * 201)


def test_a_boolean_is_true_or_false() -> None:
    with pytest.raises((ProgrammingError, IntegrityError)):  # PostgreSQL: the wrong type
        write_raw("cancel_requested", 7)


@pytest.mark.sqlite_only  # the other databases have types for these
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("due_at", "tomorrow"),
        ("due_at", "2026-13-01 00:00:00.000000"),
        ("due_at", "2026-01-01T00:00:00Z"),
        ("correlation_id", "not a uuid"),
        ("correlation_id", "0190000100007000800000000000000G"),
        ("correlation_id", "01900001-0000-7000-8000-000000000000"),
    ],
)
def test_a_text_has_the_form_of_a_moment_or_an_id(column: str, value: str) -> None:
    with pytest.raises(IntegrityError, match="CHECK constraint failed"):
        write_raw(column, value)

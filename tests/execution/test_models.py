"""Constraints on the attempt log that the database itself enforces."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from execution.models import HttpExecution
from execution.outcome import METHODS
from tests.factories import HttpExecutionFactory, ServiceCallFactory

pytestmark = pytest.mark.django_db


def create_attempt(**values: Any) -> HttpExecution:
    call = ServiceCallFactory()
    made: HttpExecution = HttpExecutionFactory(
        tenant_id=call.tenant_id, service_call_id=call.service_call_id, **values
    )
    return made


@pytest.mark.parametrize("method", METHODS)
def test_it_logs_every_method_that_a_call_may_use(method: str) -> None:
    assert create_attempt(request_method=method).request_method == method


@pytest.mark.parametrize("method", ["BREW", "get", "", "TRACE", "CONNECT"])
def test_it_refuses_any_other_method(method: str) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        create_attempt(request_method=method)


@pytest.mark.parametrize("column", ["started_at", "request_url", "request_headers", "node", "attempt"])
def test_it_refuses_a_row_without(column: str) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        create_attempt(**{column: None})


def test_a_call_keeps_every_attempt() -> None:
    first = create_attempt()
    HttpExecutionFactory(tenant_id=first.tenant_id, service_call_id=first.service_call_id, attempt=2)
    numbers = (
        HttpExecution.objects.for_tenant(first.tenant_id)
        .order_by("attempt")
        .values_list("attempt", flat=True)
    )
    assert list(numbers) == [1, 2]

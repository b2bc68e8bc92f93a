"""Calls are locked in the order of their keys, however large their requests are: no database has to sort them."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from eventservice.tenants.models import Tenant
from orchestration.commands import RequestSpec
from orchestration.lifecycle.rows import lock_calls_with_requests
from tests.orchestration.support import submit

# More than MySQL's sort buffer has, whose size the backend sets.
LARGE = ["x" * 1_000_000] * 9
SMALL_CALLS = 20
ANALYZE = {"sqlite": "ANALYZE", "postgresql": "ANALYZE service_calls", "mysql": "ANALYZE TABLE service_calls"}


@pytest.mark.django_db(transaction=True)
def test_calls_with_large_requests_are_locked_together(tenant: Tenant) -> None:
    small = [submit(tenant) for _ in range(SMALL_CALLS)]
    large = submit(tenant, request=RequestSpec("POST", "https://example.test/", {}, LARGE))
    # When MySQL knows that the table is small, it would read it by another index than the primary key.
    with connection.cursor() as cursor:
        cursor.execute(ANALYZE[connection.vendor])
    keys = [(tenant.pk, call_id) for call_id in (large, *reversed(small))]
    with transaction.atomic():
        found = lock_calls_with_requests(keys)
    assert [row.service_call_id for row, _ in found] == sorted((large, *small))
    assert found[-1][1]["body"] == LARGE

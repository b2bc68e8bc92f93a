"""Database trouble that lasts longer than a node's lease: no attempt in flight is declared lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest
from django.conf import settings
from django.db import connection, transaction

from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from orchestration.states import Delivery, Status
from tests.database_connections import end_other_connections
from tests.process_harness import (
    ProcessHarness,
    build_call,
    submit_calls,
    wait_until,
    wait_until_all_ended,
    wait_until_at_work,
)

TROUBLE_SECONDS = settings.NODE_LEASE_SECONDS * 1.5
CALLS_EACH = 20

pytestmark = pytest.mark.chaos


@contextmanager
def close_database() -> Iterator[None]:
    name = connection.settings_dict["NAME"]
    with connection._nodb_cursor() as cursor:  # PostgreSQL does not close a database to its own connection
        cursor.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            end_other_connections()
            yield
        finally:
            cursor.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def assert_each_call_was_made_once(tenant: UUID) -> None:
    outcomes = ServiceCall.objects.for_tenant(tenant).values_list("status", "attempt")
    assert set(outcomes) == {(Status.SUCCEEDED, 1)}


@pytest.mark.parametrize("engines", [1, 2])
def test_while_the_database_is_unavailable(engines: int, harness: ProcessHarness) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("the other databases cannot be closed for a while")
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    running = [harness.start_engine() for _ in range(engines)]
    wait_until_at_work(*running)
    submitted = submit_calls(
        build_call(tenant, f"{target.url}/delay/15", delivery=delivery)
        for delivery in Delivery
        for _ in range(CALLS_EACH)
    )
    wait_until(lambda: target.list_call_ids() == set(submitted), "all attempts are in flight")
    with close_database():
        time.sleep(TROUBLE_SECONDS)
    wait_until_all_ended()
    harness.stop(*running)
    assert_each_call_was_made_once(tenant)


def test_while_another_transaction_locks_the_row_of_one_call(harness: ProcessHarness) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite does not lock rows")
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    engines = harness.start_engine(), harness.start_engine()
    wait_until_at_work(*engines)
    (held,) = submit_calls([build_call(tenant, f"{target.url}/delay/1")])
    others = submit_calls(
        build_call(tenant, f"{target.url}/delay/15", delivery=delivery)
        for delivery in Delivery
        for _ in range(CALLS_EACH)
    )
    wait_until(lambda: target.list_call_ids() == {held, *others}, "all attempts are in flight")
    with transaction.atomic():
        ServiceCall.objects.for_tenant(tenant).select_for_update().get(service_call_id=held)
        time.sleep(1 + TROUBLE_SECONDS)
    wait_until_all_ended()
    harness.stop(*engines)
    assert_each_call_was_made_once(tenant)

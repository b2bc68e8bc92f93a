"""Trouble of the database that lasts longer than a node's lease: no attempt that is under way is taken for lost."""

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
from tests.process_harness import Stage, accept, at_work, call, until, until_all_have_ended

LONGER_THAN_A_LEASE = settings.NODE_LEASE_SECONDS * 1.5
OF_EACH = 20

pytestmark = pytest.mark.chaos


@contextmanager
def closed_database() -> Iterator[None]:
    name = connection.settings_dict["NAME"]
    with connection._nodb_cursor() as cursor:  # PostgreSQL closes no database to its own
        cursor.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            end_other_connections()
            yield
        finally:
            cursor.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def assert_each_was_made_once(tenant: UUID) -> None:
    outcomes = ServiceCall.objects.for_tenant(tenant).values_list("status", "attempt")
    assert set(outcomes) == {(Status.SUCCEEDED, 1)}


@pytest.mark.parametrize("engines", [1, 2])
def test_when_the_database_is_away(engines: int, stage: Stage) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("the others cannot be closed for a while")
    witness, tenant = stage.witness(), create_tenant("acme").tenant_id
    running = [stage.engine() for _ in range(engines)]
    at_work(*running)
    begun = accept(
        call(tenant, f"{witness.url}/delay/15", delivery=delivery)
        for delivery in Delivery
        for _ in range(OF_EACH)
    )
    until(lambda: witness.calls() == set(begun), "all attempts are under way")
    with closed_database():
        time.sleep(LONGER_THAN_A_LEASE)
    until_all_have_ended()
    stage.stop(*running)
    assert_each_was_made_once(tenant)


def test_when_somebody_holds_on_to_the_row_of_one_call(stage: Stage) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite locks no rows")
    witness, tenant = stage.witness(), create_tenant("acme").tenant_id
    engines = stage.engine(), stage.engine()
    at_work(*engines)
    (held,) = accept([call(tenant, f"{witness.url}/delay/1")])
    others = accept(
        call(tenant, f"{witness.url}/delay/15", delivery=delivery)
        for delivery in Delivery
        for _ in range(OF_EACH)
    )
    until(lambda: witness.calls() == {held, *others}, "all attempts are under way")
    with transaction.atomic():
        ServiceCall.objects.for_tenant(tenant).select_for_update().get(service_call_id=held)
        time.sleep(1 + LONGER_THAN_A_LEASE)
    until_all_have_ended()
    stage.stop(*engines)
    assert_each_was_made_once(tenant)

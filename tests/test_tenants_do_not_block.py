"""A tenant's open transaction does not block another tenant, not even for a row with the same ids."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction

from eventservice.kernel.ids import new_id
from tests.test_data_model import ALL, get_table, write

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("factory", ALL, ids=get_table)
def test_a_tenant_writes_while_another_has_an_open_transaction(factory: Any, elsewhere: Any) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    ours, theirs = new_id(), new_id()
    with transaction.atomic():
        write(factory, ours)
        elsewhere(write, factory, theirs).result(timeout=5)
        factory._meta.model.objects.for_tenant(ours).delete()

    assert [row.tenant_id for row in factory._meta.model.across_tenants.all()] == [theirs]

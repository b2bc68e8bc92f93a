"""An event is appended in the transaction of its change, or not at all."""

from __future__ import annotations

import pytest
from django.db import transaction

from eventservice.kernel.ids import new_id
from outbox.models import OutboxEvent
from outbox.writer import OutsideTransaction, append_events
from tests.outbox.support import build_event, store_run

pytestmark = pytest.mark.django_db(transaction=True)


def test_it_refuses_outside_a_transaction() -> None:
    with pytest.raises(OutsideTransaction):
        append_events([build_event(new_id(), 1)])
    assert not OutboxEvent.across_tenants.exists()


def test_an_event_is_rolled_back_with_its_change() -> None:
    def change() -> None:
        with transaction.atomic():
            append_events([build_event(new_id(), 1)])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change()
    assert not OutboxEvent.across_tenants.exists()


def test_all_events_of_an_aggregate_are_in_one_partition() -> None:
    store_run(new_id(), 5)
    assert OutboxEvent.across_tenants.values("partition").distinct().count() == 1

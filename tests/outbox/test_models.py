"""The events of an aggregate have unique numbers, separately for each tenant, and ids increase as events are written."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from eventservice.kernel.ids import new_id
from outbox.models import OutboxEvent
from tests.factories import OutboxEventFactory

pytestmark = pytest.mark.django_db


def test_an_aggregate_has_one_event_with_each_number() -> None:
    event = OutboxEventFactory(aggregate_seq=7)
    with pytest.raises(IntegrityError), transaction.atomic():
        OutboxEventFactory(tenant_id=event.tenant_id, aggregate_id=event.aggregate_id, aggregate_seq=7)


def test_the_same_aggregate_id_of_another_tenant_is_numbered_separately() -> None:
    event = OutboxEventFactory(aggregate_seq=7)
    OutboxEventFactory(tenant_id=new_id(), aggregate_id=event.aggregate_id, aggregate_seq=7)
    assert OutboxEvent.objects.for_tenant(event.tenant_id).count() == 1


def test_an_id_is_never_used_again_even_after_the_last_row_is_deleted() -> None:
    first = OutboxEventFactory()
    first_id = first.id
    first.delete()
    assert OutboxEventFactory().id > first_id

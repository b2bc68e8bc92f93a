"""The events of an aggregate have unique numbers, separately for each tenant, and ids increase as events are written."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.models import Q

from eventservice.kernel.ids import new_id
from outbox.models import HELD, PARKED, WAITING, EventState, OutboxEvent
from tests.factories import EARLIER, OutboxEventFactory

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


UNPUBLISHED: dict[EventState, tuple[Q, dict[str, Any]]] = {
    EventState.WAITING: (WAITING, {}),
    EventState.RETRYING: (WAITING, {"attempts": 1}),
    EventState.PARKED: (PARKED, {"parked_at": EARLIER, "attempts": 5}),
    EventState.HELD: (HELD, {"parked_at": EARLIER}),
}


@pytest.mark.parametrize("state", UNPUBLISHED)
def test_the_conditions_of_queries_agree_with_the_state_of_an_event(state: EventState) -> None:
    condition, columns = UNPUBLISHED[state]
    event = OutboxEventFactory(**columns)
    OutboxEventFactory(published_at=EARLIER, **columns)
    assert event.state == state
    for other in (WAITING, PARKED, HELD):
        found = [event] if other is condition else []
        assert list(OutboxEvent.across_tenants.filter(other)) == found


def test_a_published_event_that_was_parked_has_been_skipped() -> None:
    assert OutboxEventFactory(published_at=EARLIER).state == EventState.PUBLISHED
    assert OutboxEventFactory(published_at=EARLIER, parked_at=EARLIER).state == EventState.SKIPPED

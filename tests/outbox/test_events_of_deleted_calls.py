"""The deletion of a call is its last event, and reaches receivers after all that came before it."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from typing import Any

import pytest

from eventservice.db.now import pin_time
from eventservice.kernel.errors import Conflict
from eventservice.tenants.directory import create_tenant
from orchestration import lifecycle
from orchestration.models import ServiceCall
from outbox.models import OutboxEvent
from outbox.parking import park, unpark
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.orchestration.support import ManualEngine, build_response, submit
from tests.outbox.conftest import Deliver, Subscribe
from tests.outbox.receiver import Receiver
from tests.outbox.support import NOON, RecordingPublisher, build_dispatcher, drain

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant(db: None) -> Any:
    return create_tenant("acme")


def create_succeeded_call(tenant: Any, **terms: Any) -> uuid.UUID:
    engine = ManualEngine()
    service_call_id = submit(tenant, **terms)
    engine.finish((engine.start_one(), build_response()))
    return service_call_id


def test_it_says_which_call_is_gone_and_what_had_become_of_it(tenant: Any) -> None:
    publisher = RecordingPublisher()
    service_call_id = submit(tenant, name="reminder", external_id="order-1")
    drain(build_dispatcher(publisher))
    correlation_id = publisher.accepted[0].correlation_id

    lifecycle.delete(tenant.tenant_id, service_call_id)
    drain(build_dispatcher(publisher))

    last = publisher.accepted[-1]
    assert (last.type, last.aggregate_id, last.sequence) == ("ServiceCallDeleted", service_call_id, 3)
    assert (last.tenant_id, last.correlation_id) == (tenant.tenant_id, correlation_id)
    assert json.loads(last.data) == {
        "name": "reminder", "namespace": "default", "timerId": "order-1", "lastStatus": "Scheduled",
    }  # fmt: skip


def test_events_that_were_waiting_are_published_before_it(tenant: Any) -> None:
    publisher = RecordingPublisher()
    service_call_id = create_succeeded_call(tenant)

    lifecycle.delete(tenant.tenant_id, service_call_id)
    drain(build_dispatcher(publisher))

    assert publisher.sequences(service_call_id) == [1, 2, 3, 4, 5, 6]
    assert publisher.accepted[-1].type == "ServiceCallDeleted"
    assert OutboxEvent.objects.for_tenant(tenant.tenant_id).filter(published_at=None).count() == 0


def test_it_waits_behind_a_parked_event(tenant: Any) -> None:
    publisher = RecordingPublisher()
    service_call_id = submit(tenant)
    events = OutboxEvent.objects.for_tenant(tenant.tenant_id)
    parked = events.get(aggregate_seq=1).id
    park(parked, "wait")
    lifecycle.delete(tenant.tenant_id, service_call_id)

    drain(build_dispatcher(publisher))
    assert publisher.sequences(service_call_id) == []
    unpark(parked)
    drain(build_dispatcher(publisher))
    assert publisher.sequences(service_call_id) == [1, 2, 3]


def test_receivers_get_it_although_the_call_is_gone(
    tenant: Any, subscribe: Subscribe, receiver: Receiver, deliver: Deliver
) -> None:
    subscribe("/all", tenant.tenant_id)
    subscribe("/deletions", tenant.tenant_id, event_types=("ServiceCallDeleted",))
    service_call_id = create_succeeded_call(tenant)
    lifecycle.delete(tenant.tenant_id, service_call_id)
    assert not ServiceCall.objects.for_tenant(tenant.tenant_id).exists()

    drain(build_dispatcher(WebhookPublisher()))
    deliver()

    assert receiver.sequences("/all") == [1, 2, 3, 4, 5, 6]
    assert receiver.sequences("/deletions") == [6]
    assert receiver.accepted[-1]["type"] == "ServiceCallDeleted"


def test_a_refused_deletion_has_no_event(tenant: Any) -> None:
    engine = ManualEngine()
    running = submit(tenant)
    engine.start()
    with pytest.raises(Conflict):
        lifecycle.delete(tenant.tenant_id, running)
    assert not OutboxEvent.across_tenants.filter(event_type="ServiceCallDeleted").exists()


def test_calls_that_retention_deletes_have_no_event(tenant: Any) -> None:
    with pin_time(NOON):
        create_succeeded_call(tenant)
    assert lifecycle.prune_calls(timedelta(hours=1), limit=10) == 1
    assert not OutboxEvent.across_tenants.filter(event_type="ServiceCallDeleted").exists()


def test_an_id_is_not_used_again_while_an_event_of_its_first_call_is_kept(tenant: Any) -> None:
    """Otherwise two events would get the same number, and the second call could never be started."""
    given = {"service_call_id": uuid.UUID("01900000-0000-7000-8000-000000000001"), "id_was_given": True}
    service_call_id = submit(tenant, **given)
    drain(build_dispatcher(RecordingPublisher()))
    lifecycle.delete(tenant.tenant_id, service_call_id)

    with pytest.raises(Conflict, match="its events are still kept"):
        submit(tenant, **given)
    OutboxEvent.objects.for_tenant(tenant.tenant_id).delete()
    assert submit(tenant, **given) == service_call_id

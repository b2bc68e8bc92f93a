"""Each endpoint gets the events of its own tenant to which it subscribes, each of them once."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import pytest

from eventservice.db.now import pin_time
from eventservice.kernel.ids import new_id
from outbox.models import DeliveryState, WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook.publisher import WebhookPublisher
from outbox.replay import replay
from tests.outbox.conftest import Deliver, Subscribe
from tests.outbox.receiver import Receiver
from tests.outbox.support import (
    NOON,
    OTHER_TENANT,
    TENANT,
    build_dispatcher,
    build_event,
    drain,
    store_events,
    store_run,
)

pytestmark = pytest.mark.django_db


def test_all_endpoints_of_the_tenant_get_it(
    subscribe: Subscribe, receiver: Receiver, deliver: Deliver
) -> None:
    subscribe("/a")
    subscribe("/b")
    store_run(new_id(), 2)
    drain(build_dispatcher(WebhookPublisher()))

    assert deliver().delivered == 4
    assert receiver.sequences("/a") == receiver.sequences("/b") == [1, 2]


def test_an_endpoint_of_another_tenant_does_not_get_it(
    subscribe: Subscribe, receiver: Receiver, deliver: Deliver
) -> None:
    ours, theirs = new_id(), new_id()
    mine = subscribe("/ours", ours)
    same_id = subscribe("/theirs", theirs)
    WebhookEndpoint.objects.for_tenant(theirs).update(endpoint_id=mine.endpoint_id)
    store_run(new_id(), 3, tenant_id=ours)
    store_run(new_id(), 1, tenant_id=theirs)
    drain(build_dispatcher(WebhookPublisher()))
    deliver()

    assert same_id.tenant_id != mine.tenant_id
    assert receiver.sequences("/ours") == [1, 2, 3]
    assert receiver.sequences("/theirs") == [1]
    assert WebhookDelivery.objects.for_tenant(theirs).count() == 1


def test_it_gets_only_the_types_to_which_it_subscribes(
    subscribe: Subscribe, receiver: Receiver, deliver: Deliver
) -> None:
    subscribe("/some", event_types=("ServiceCallFailed",))
    aggregate = new_id()
    store_events(build_event(aggregate, 1), build_event(aggregate, 2, type="ServiceCallFailed"))
    drain(build_dispatcher(WebhookPublisher()))
    deliver()

    assert receiver.sequences("/some") == [2]


def test_a_repeated_publish_makes_no_second_delivery(
    subscribe: Subscribe, receiver: Receiver, deliver: Deliver
) -> None:
    class Twice(WebhookPublisher):
        def publish(self, events: object) -> None:
            super().publish(events)  # type: ignore[arg-type]
            super().publish(events)  # type: ignore[arg-type]

    subscribe()
    store_run(new_id(), 3)
    drain(build_dispatcher(Twice()))

    assert deliver().delivered == 3
    assert receiver.sequences("/hook") == [1, 2, 3]


def test_new_events_are_delivered_behind_repeated_ones(
    subscribe: Subscribe, receiver: Receiver, deliver: Deliver
) -> None:
    """The dispatcher died before it marked the first two, and they have been delivered meanwhile."""
    subscribe()
    aggregate = new_id()
    publisher = WebhookPublisher()

    class Dies(WebhookPublisher):
        def publish(self, events: object) -> None:
            super().publish(events)  # type: ignore[arg-type]
            raise OSError("killed")

    store_run(aggregate, 2)
    died = build_dispatcher(Dies())
    died.dispatch_once()
    died.release()
    deliver()
    store_run(aggregate, 2, first=3)
    drain(build_dispatcher(publisher))

    assert deliver().delivered == 2
    assert receiver.sequences("/hook") == [1, 2, 3, 4]


def test_a_replay_delivers_again(subscribe: Subscribe, receiver: Receiver, deliver: Deliver) -> None:
    subscribe()
    store_run(new_id(), 2)
    drain(build_dispatcher(WebhookPublisher()))
    deliver()
    replay(NOON.replace(year=2000))
    drain(build_dispatcher(WebhookPublisher()))
    deliver()

    assert receiver.sequences("/hook") == [1, 2, 1, 2]
    assert len({event["id"] for event in receiver.accepted}) == 2


def test_deleting_an_endpoint_deletes_its_deliveries(subscribe: Subscribe) -> None:
    endpoint = subscribe()
    store_run(new_id(), 2)
    drain(build_dispatcher(WebhookPublisher()))
    WebhookEndpoint.objects.for_tenant(TENANT).filter(endpoint_id=endpoint.endpoint_id).delete()
    assert not WebhookDelivery.across_tenants.exists()


def test_nothing_is_sent_to_a_host_that_the_tenant_may_not_call(
    subscribe: Subscribe, receiver: Receiver, deliver: Deliver, allowed_hosts: dict[UUID, set[str]]
) -> None:
    subscribe("/restricted")
    subscribe("/other", tenant_id=OTHER_TENANT)
    allowed_hosts[TENANT] = {"fine.example"}
    store_run(new_id(), 1)
    store_run(new_id(), 1, tenant_id=OTHER_TENANT)
    drain(build_dispatcher(WebhookPublisher()))

    result = deliver()

    assert (result.delivered, result.retried) == (1, 1)
    assert (receiver.sequences("/restricted"), receiver.sequences("/other")) == ([], [1])
    refused = WebhookDelivery.objects.for_tenant(TENANT).get()
    assert refused.last_error == "Egress: The host 127.0.0.1 is not among the tenant's allowed hosts."
    assert (refused.state, refused.attempts) == (DeliveryState.PENDING, 1)


def test_it_is_sent_once_the_host_is_allowed(
    subscribe: Subscribe,
    receiver: Receiver,
    deliver: Deliver,
    allowed_hosts: dict[UUID, set[str]],
    at_noon: datetime,
) -> None:
    subscribe("/hook")
    allowed_hosts[TENANT] = {"fine.example"}
    store_run(new_id(), 1)
    drain(build_dispatcher(WebhookPublisher()))
    assert deliver().retried == 1

    allowed_hosts[TENANT].add("127.0.0.1")
    with pin_time(at_noon + timedelta(hours=1)):
        assert deliver().delivered == 1

"""Responses are kept with their deliveries, and test events are sent like others."""

from __future__ import annotations

import pytest

from eventservice.kernel.errors import Conflict, NotFound
from eventservice.kernel.ids import new_id
from eventservice.runtime.dispatcher import MAX_EXCERPT_BYTES
from outbox.models import WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook import endpoints
from outbox.publishers.webhook.delivery_queue import (
    DeliveryCounts,
    WebhookResult,
    claim_deliveries,
    record_results,
)
from outbox.publishers.webhook.endpoints import delete_endpoint, send_test_event, set_endpoint_active
from outbox.publishers.webhook.publisher import WebhookPublisher
from outbox.publishers.webhook.recovery import list_endpoint_deliveries
from tests.outbox.conftest import Deliver, Subscribe
from tests.outbox.receiver import Receiver
from tests.outbox.support import OTHER_TENANT, TENANT, build_dispatcher, drain, store_run

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


def get_delivery() -> WebhookDelivery:
    found: WebhookDelivery = WebhookDelivery.across_tenants.get()
    return found


def publish(count: int = 1) -> None:
    store_run(new_id(), count)
    drain(build_dispatcher(WebhookPublisher()))


def test_the_response_to_a_failed_attempt_is_kept_without_the_secrets_of_the_url(
    subscribe: Subscribe, receiver: Receiver, deliver: Deliver
) -> None:
    subscribe("/hook?token=hunter2")
    receiver.respond = lambda path, event: 400
    receiver.response_body = b"bad \0 signature, token=hunter2 " + b"x" * 5000
    publish()
    deliver()
    delivery = get_delivery()
    assert (delivery.response_status, delivery.last_error) == (400, "HTTP 400")
    assert delivery.response_body is not None
    assert delivery.response_body.startswith("bad  signature, \u2022")
    assert len(delivery.response_body) <= MAX_EXCERPT_BYTES
    assert "hunter2" not in delivery.response_body


def test_of_a_successful_response_only_the_status_is_kept(
    subscribe: Subscribe, receiver: Receiver, deliver: Deliver
) -> None:
    subscribe()
    receiver.respond = lambda path, event: 200
    receiver.response_body = b"thanks"
    publish()
    deliver()
    delivery = get_delivery()
    assert (delivery.response_status, delivery.response_body, delivery.last_error) == (200, None, "")


def test_a_test_event_is_signed_and_delivered_whatever_types_the_endpoint_wants(
    subscribe: Subscribe, receiver: Receiver, deliver: Deliver
) -> None:
    endpoint = subscribe(event_types=("ServiceCallFailed",))
    other = subscribe("/other")
    send_test_event(endpoint.tenant_id, endpoint.endpoint_id)
    assert deliver().delivered == 1
    (event,) = receiver.accepted
    assert (event["path"], event["type"], event["tenantid"]) == ("/hook", "WebhookTest", str(TENANT))
    assert list_endpoint_deliveries(other, None, None, 10).deliveries == []


def test_a_disabled_or_unknown_endpoint_gets_no_test_event(subscribe: Subscribe) -> None:
    endpoint = subscribe()
    with pytest.raises(NotFound):
        send_test_event(OTHER_TENANT, endpoint.endpoint_id)
    set_endpoint_active(endpoint.tenant_id, endpoint.endpoint_id, active=False)
    with pytest.raises(Conflict, match="Enable it first"):
        send_test_event(endpoint.tenant_id, endpoint.endpoint_id)
    assert not WebhookDelivery.across_tenants.exists()


def test_an_endpoint_is_deleted_with_its_deliveries_and_no_others(
    subscribe: Subscribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "DELETION_BATCH", 2)
    endpoint, other = subscribe(), subscribe("/other")
    publish(5)
    delete_endpoint(endpoint.tenant_id, endpoint.endpoint_id)
    assert list(WebhookEndpoint.across_tenants.all()) == [other]
    assert len(list_endpoint_deliveries(other, None, None, 10).deliveries) == 5
    assert WebhookDelivery.across_tenants.count() == 5
    with pytest.raises(NotFound):
        delete_endpoint(endpoint.tenant_id, endpoint.endpoint_id)


def test_results_of_an_endpoint_that_is_deleted_meanwhile_are_dropped(subscribe: Subscribe) -> None:
    endpoint = subscribe()
    publish(3)
    claimed, _ = claim_deliveries(endpoint, 10)
    delete_endpoint(endpoint.tenant_id, endpoint.endpoint_id)
    assert (
        record_results(endpoint, [WebhookResult(delivery, 200) for delivery in claimed]) == DeliveryCounts()
    )


def test_deliveries_are_listed_in_pages_the_newest_first(subscribe: Subscribe) -> None:
    endpoint = subscribe()
    subscribe("/other")
    publish(40)
    page = list_endpoint_deliveries(endpoint, None, None, 10)
    rest = list_endpoint_deliveries(endpoint, None, page.cursor, 50)
    pending = list_endpoint_deliveries(endpoint, "Pending", page.cursor, 50)
    delivered = list_endpoint_deliveries(endpoint, "Delivered", None, 10)
    assert (len(page.deliveries), len(rest.deliveries), rest.cursor) == (10, 30, None)
    assert [each.delivery_id for each in pending.deliveries] == [each.delivery_id for each in rest.deliveries]
    assert delivered.deliveries == []
    assert {each.endpoint_id for each in [*page.deliveries, *rest.deliveries]} == {endpoint.endpoint_id}

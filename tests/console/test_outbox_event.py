"""An event's page, and what an operator can do there: retry, skip, park. A viewer can do nothing."""

from __future__ import annotations

import pytest
from django.test import Client

from eventservice.kernel.ids import new_id
from eventservice.operators.models import OperatorAction
from eventservice.tenants.models import Tenant
from outbox.models import OutboxEvent
from outbox.parking import list_parked_events
from outbox.publishers.webhook.endpoints import create_endpoint
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.outbox.support import (
    RecordingPublisher,
    build_dispatcher,
    build_event,
    drain,
    store_events,
    store_run,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def parked(tenant: Tenant) -> OutboxEvent:
    poison = store_run(new_id(), 3, tenant_id=tenant.tenant_id)[0]
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    drain(build_dispatcher(publisher))
    return list_parked_events().get()


@pytest.fixture
def waiting(tenant: Tenant) -> OutboxEvent:
    call = store_run(new_id(), 2, tenant_id=tenant.tenant_id)[0].aggregate_id
    events = OutboxEvent.objects.for_tenant(tenant.tenant_id)
    first: OutboxEvent = events.get(aggregate_id=call, aggregate_seq=1)
    return first


def refreshed(of: OutboxEvent) -> OutboxEvent:
    of.refresh_from_db()
    return of


def actions() -> list[str]:
    return list(OperatorAction.across_tenants.order_by("id").values_list("action", flat=True))


def test_its_page_shows_what_it_is_and_leads_to_its_call(viewer: Client, parked: OutboxEvent) -> None:
    page = viewer.get(f"/outbox/{parked.id}/").content.decode()
    assert f"/calls/{parked.tenant_id}/{parked.aggregate_id}/" in page
    assert "&quot;n&quot;: 1" in page
    assert "recording: too large" in page
    assert "2 events of this call wait behind it" in page
    for shown in (parked.event_id, parked.correlation_id):
        assert str(shown) in page


def test_its_cause_is_a_link(viewer: Client, tenant: Tenant) -> None:
    first = build_event(new_id(), 1, tenant_id=tenant.tenant_id)
    second = build_event(first.aggregate_id, 2, tenant_id=tenant.tenant_id, causation_id=first.event_id)
    store_events(first, second)
    cause, effect = OutboxEvent.objects.for_tenant(tenant.tenant_id).order_by("id")
    page = viewer.get(f"/outbox/{effect.id}/")
    assert page.context["cause"] == cause
    assert f'href="/outbox/{cause.id}/"' in page.content.decode()


def test_its_webhook_deliveries_are_shown_without_the_secrets_of_the_url(
    viewer: Client, tenant: Tenant
) -> None:
    create_endpoint(tenant.tenant_id, "https://me:hush@hooks.example/in?token=hush")
    store_run(new_id(), 1, tenant_id=tenant.tenant_id)
    drain(build_dispatcher(WebhookPublisher()))
    sent = OutboxEvent.objects.for_tenant(tenant.tenant_id).get()
    page = viewer.get(f"/outbox/{sent.id}/").content.decode()
    assert "https://hooks.example/in?…" in page
    assert "pending" in page
    assert "hush" not in page


@pytest.mark.parametrize("key", [1, 2**63 - 1, 2**63, 10**40])
def test_an_event_that_is_not_there_is_not_found(viewer: Client, key: int) -> None:
    assert viewer.get(f"/outbox/{key}/").status_code == 404


def test_retrying_lets_it_flow_again(operator: Client, parked: OutboxEvent) -> None:
    response = operator.post(f"/outbox/{parked.id}/retry/")
    assert (response.status_code, response["Location"]) == (303, f"/outbox/{parked.id}/")
    assert drain(build_dispatcher(RecordingPublisher())) == 3
    assert actions() == ["event-retry"]


def test_skipping_takes_the_typed_word(operator: Client, parked: OutboxEvent) -> None:
    asked = operator.get(f"/outbox/{parked.id}/skip/").content.decode()
    assert "The event will never be published" in asked
    assert "2 events" in asked
    operator.post(f"/outbox/{parked.id}/skip/", {"word": "yes"})
    assert refreshed(parked).published_at is None
    assert actions() == []
    operator.post(f"/outbox/{parked.id}/skip/", {"word": "skip"})
    assert refreshed(parked).published_at is not None
    assert drain(build_dispatcher(RecordingPublisher())) == 2
    assert actions() == ["event-skip"]


def test_parking_by_hand_holds_its_call_until_it_is_retried(operator: Client, waiting: OutboxEvent) -> None:
    operator.post(f"/outbox/{waiting.id}/park/")
    assert refreshed(waiting).last_error == "Parked by an operator."
    publisher = RecordingPublisher()
    assert drain(build_dispatcher(publisher)) == 0
    operator.post(f"/outbox/{waiting.id}/retry/")
    drain(build_dispatcher(publisher))
    assert publisher.sequences(waiting.aggregate_id) == [1, 2]
    assert actions() == ["event-park", "event-retry"]


def test_what_cannot_be_done_any_more_says_so_and_leaves_no_note(
    operator: Client, waiting: OutboxEvent
) -> None:
    drain(build_dispatcher(RecordingPublisher()))
    for action, data in (("retry", {}), ("skip", {"word": "skip"}), ("park", {})):
        response = operator.post(f"/outbox/{waiting.id}/{action}/", data, follow=True)
        assert "Nothing was changed" in response.content.decode(), action
    assert actions() == []


def test_a_viewer_and_an_outsider_are_refused(
    viewer: Client, outsider: Client, parked: OutboxEvent, waiting: OutboxEvent
) -> None:
    attempts: list[tuple[str, dict[str, str]]] = [
        (f"/outbox/{parked.id}/retry/", {}),
        (f"/outbox/{parked.id}/skip/", {"word": "skip"}),
        (f"/outbox/{waiting.id}/park/", {}),
    ]
    for path, data in attempts:
        assert viewer.post(path, data).status_code == 403
        assert outsider.post(path, data)["Location"].startswith("/login/")
    assert refreshed(parked).published_at is None
    assert refreshed(parked).parked_at is not None
    assert refreshed(waiting).parked_at is None
    assert actions() == []


def test_a_viewer_is_not_shown_the_buttons(viewer: Client, operator: Client, parked: OutboxEvent) -> None:
    def shown(client: Client) -> bool:
        return f"/outbox/{parked.id}/retry/" in client.get(f"/outbox/{parked.id}/").content.decode()

    assert (shown(viewer), shown(operator)) == (False, True)


@pytest.mark.parametrize(
    "elsewhere", ["//evil.example/", "https://evil.example/", "javascript:alert(1)"], ids=str
)
def test_the_way_back_leads_nowhere_else(operator: Client, parked: OutboxEvent, elsewhere: str) -> None:
    asked = operator.get(f"/outbox/{parked.id}/skip/", {"next": elsewhere}).content.decode()
    assert elsewhere not in asked
    sent = operator.post(f"/outbox/{parked.id}/retry/", {"next": elsewhere})
    assert sent["Location"] == f"/outbox/{parked.id}/"


def test_the_note_tells_who_and_what(operator: Client, parked: OutboxEvent) -> None:
    operator.post(f"/outbox/{parked.id}/retry/")
    noted = OperatorAction.across_tenants.get()
    assert (noted.user, noted.tenant_id, noted.subject) == ("oscar", parked.tenant_id, str(parked.id))
    assert noted.detail == {"type": "ServiceCallSubmitted"}

"""The page of an event, where operators retry, skip and park it. Viewers can only read it."""

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
def stuck_event(tenant: Tenant) -> OutboxEvent:
    poison = store_run(new_id(), 3, tenant_id=tenant.tenant_id)[0]
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    drain(build_dispatcher(publisher))
    return list_parked_events().get()


@pytest.fixture
def waiting_event(tenant: Tenant) -> OutboxEvent:
    call = store_run(new_id(), 2, tenant_id=tenant.tenant_id)[0].aggregate_id
    events = OutboxEvent.objects.for_tenant(tenant.tenant_id)
    first: OutboxEvent = events.get(aggregate_id=call, aggregate_seq=1)
    return first


def refresh(of: OutboxEvent) -> OutboxEvent:
    of.refresh_from_db()
    return of


def list_actions() -> list[str]:
    return list(OperatorAction.across_tenants.order_by("id").values_list("action", flat=True))


def test_the_page_describes_the_event_and_links_to_its_call(viewer: Client, stuck_event: OutboxEvent) -> None:
    page = viewer.get(f"/events/{stuck_event.id}/").content.decode()
    assert f"/calls/{stuck_event.tenant_id}/{stuck_event.aggregate_id}/" in page
    assert "&quot;n&quot;: 1" in page
    assert "recording: too large" in page
    assert "2 events of this call wait behind it" in page
    for shown in (stuck_event.event_id, stuck_event.correlation_id):
        assert str(shown) in page


def test_the_cause_of_an_event_is_a_link(viewer: Client, tenant: Tenant) -> None:
    first = build_event(new_id(), 1, tenant_id=tenant.tenant_id)
    second = build_event(first.aggregate_id, 2, tenant_id=tenant.tenant_id, causation_id=first.event_id)
    store_events(first, second)
    cause, effect = OutboxEvent.objects.for_tenant(tenant.tenant_id).order_by("id")
    page = viewer.get(f"/events/{effect.id}/")
    assert page.context["cause"] == cause
    assert f'href="/events/{cause.id}/"' in page.content.decode()


def test_webhook_deliveries_are_shown_without_the_secrets_of_the_url(viewer: Client, tenant: Tenant) -> None:
    create_endpoint(tenant.tenant_id, "https://me:hush@hooks.example/in?token=hush")
    store_run(new_id(), 1, tenant_id=tenant.tenant_id)
    drain(build_dispatcher(WebhookPublisher()))
    sent = OutboxEvent.objects.for_tenant(tenant.tenant_id).get()
    page = viewer.get(f"/events/{sent.id}/").content.decode()
    assert "https://hooks.example/in?…" in page
    assert "pending" in page
    assert "hush" not in page


@pytest.mark.parametrize("key", [1, 2**63 - 1, 2**63, 10**40])
def test_an_unknown_event_is_not_found(viewer: Client, key: int) -> None:
    assert viewer.get(f"/events/{key}/").status_code == 404


def test_the_page_refreshes_while_its_event_may_change(operator: Client, stuck_event: OutboxEvent) -> None:
    address = f"/events/{stuck_event.id}/"
    assert 'data-live="5"' in operator.get(address).content.decode()
    waiting = operator.post(f"{address}retry/", follow=True).content.decode()
    assert 'id="event" data-live="1"' in waiting
    drain(build_dispatcher(RecordingPublisher()))
    published = operator.get(address).content.decode()
    assert 'id="event" data-live="0"' in published
    assert "data-pause" not in published


def test_a_retried_event_is_published(operator: Client, stuck_event: OutboxEvent) -> None:
    response = operator.post(f"/events/{stuck_event.id}/retry/")
    assert (response.status_code, response["Location"]) == (303, f"/events/{stuck_event.id}/")
    assert drain(build_dispatcher(RecordingPublisher())) == 3
    assert list_actions() == ["event-retry"]


def test_skipping_requires_the_typed_word(operator: Client, stuck_event: OutboxEvent) -> None:
    asked = operator.get(f"/events/{stuck_event.id}/skip/").content.decode()
    assert "The event will never be published" in asked
    assert "2 events" in asked
    operator.post(f"/events/{stuck_event.id}/skip/", {"word": "yes"})
    assert refresh(stuck_event).published_at is None
    assert list_actions() == []
    operator.post(f"/events/{stuck_event.id}/skip/", {"word": "skip"})
    assert refresh(stuck_event).published_at is not None
    assert drain(build_dispatcher(RecordingPublisher())) == 2
    assert list_actions() == ["event-skip"]


def test_a_parked_event_holds_its_call_until_it_is_retried(
    operator: Client, waiting_event: OutboxEvent
) -> None:
    operator.post(f"/events/{waiting_event.id}/park/")
    assert refresh(waiting_event).last_error == "Parked by an operator."
    publisher = RecordingPublisher()
    assert drain(build_dispatcher(publisher)) == 0
    operator.post(f"/events/{waiting_event.id}/retry/")
    drain(build_dispatcher(publisher))
    assert publisher.sequences(waiting_event.aggregate_id) == [1, 2]
    assert list_actions() == ["event-park", "event-retry"]


def test_an_action_that_is_too_late_is_refused_and_not_recorded(
    operator: Client, waiting_event: OutboxEvent
) -> None:
    drain(build_dispatcher(RecordingPublisher()))
    for action, data in (("retry", {}), ("skip", {"word": "skip"}), ("park", {})):
        response = operator.post(f"/events/{waiting_event.id}/{action}/", data, follow=True)
        assert "Nothing was changed" in response.content.decode(), action
    assert list_actions() == []


def test_a_viewer_and_an_outsider_are_refused(
    viewer: Client, outsider: Client, stuck_event: OutboxEvent, waiting_event: OutboxEvent
) -> None:
    attempts: list[tuple[str, dict[str, str]]] = [
        (f"/events/{stuck_event.id}/retry/", {}),
        (f"/events/{stuck_event.id}/skip/", {"word": "skip"}),
        (f"/events/{waiting_event.id}/park/", {}),
    ]
    for path, data in attempts:
        assert viewer.post(path, data).status_code == 403
        assert outsider.post(path, data)["Location"].startswith("/login/")
    assert refresh(stuck_event).published_at is None
    assert refresh(stuck_event).parked_at is not None
    assert refresh(waiting_event).parked_at is None
    assert list_actions() == []


def test_a_viewer_has_no_buttons(viewer: Client, operator: Client, stuck_event: OutboxEvent) -> None:
    def has_button(client: Client) -> bool:
        return f"/events/{stuck_event.id}/retry/" in client.get(f"/events/{stuck_event.id}/").content.decode()

    assert (has_button(viewer), has_button(operator)) == (False, True)


@pytest.mark.parametrize(
    "elsewhere", ["//evil.example/", "https://evil.example/", "javascript:alert(1)"], ids=str
)
def test_an_action_redirects_to_no_other_site(
    operator: Client, stuck_event: OutboxEvent, elsewhere: str
) -> None:
    asked = operator.get(f"/events/{stuck_event.id}/skip/", {"next": elsewhere}).content.decode()
    assert elsewhere not in asked
    sent = operator.post(f"/events/{stuck_event.id}/retry/", {"next": elsewhere})
    assert sent["Location"] == f"/events/{stuck_event.id}/"


def test_the_audit_log_has_the_user_and_the_event(operator: Client, stuck_event: OutboxEvent) -> None:
    operator.post(f"/events/{stuck_event.id}/retry/")
    noted = OperatorAction.across_tenants.get()
    assert (noted.user, noted.tenant_id, noted.subject) == (
        "oscar",
        stuck_event.tenant_id,
        str(stuck_event.id),
    )
    assert noted.detail == {"type": "ServiceCallSubmitted"}

"""A replay is previewed with its count, confirmed with a typed word, and limited in size."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.test import Client

from eventservice.console import event_replay
from eventservice.operators.models import OperatorAction
from eventservice.tenants.models import Tenant
from outbox.models import OutboxEvent
from outbox.replay import preview_replay
from tests.factories import OutboxEventFactory

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

SINCE = "2026-03-01T11:00:00Z"


@pytest.fixture(autouse=True)
def published(tenant: Tenant, intruder: Tenant, at_noon: datetime) -> None:
    """Six events of the last hour, two of them of another tenant, and two older ones."""
    for minutes, owner in (
        (5, tenant),
        (10, intruder),
        (20, tenant),
        (30, intruder),
        (40, tenant),
        (50, tenant),
    ):
        at = at_noon - timedelta(minutes=minutes)
        OutboxEventFactory(tenant_id=owner.tenant_id, created_at=at, published_at=at)
    for hours in (2, 3):
        at = at_noon - timedelta(hours=hours)
        OutboxEventFactory(tenant_id=tenant.tenant_id, created_at=at, published_at=at)


def unpublished() -> int:
    return OutboxEvent.across_tenants.filter(published_at=None).count()


def test_the_preview_counts_and_changes_nothing(viewer: Client, tenant: Tenant) -> None:
    assert viewer.get("/events/replay/?since=1h").context["found"].count == 6
    of_tenant = viewer.get(f"/events/replay/?since={SINCE}&tenant={tenant.tenant_id}")
    assert of_tenant.context["found"].count == 4
    assert "4 events</strong> of acme" in of_tenant.content.decode()
    assert unpublished() == 0


def test_an_empty_replay_says_so(viewer: Client) -> None:
    assert "No events published since" in viewer.get("/events/replay/?since=1s").content.decode()


def test_a_replay_publishes_the_previewed_events_again(operator: Client, tenant: Tenant) -> None:
    data = {"since": SINCE, "tenant": str(tenant.tenant_id), "word": "replay"}
    response = operator.post("/events/replay/", data, follow=True)
    assert "4 events will be published again" in response.content.decode()
    assert unpublished() == 4
    noted = OperatorAction.across_tenants.get()
    assert (noted.action, noted.tenant_id) == ("events-replay", tenant.tenant_id)
    assert noted.detail == {"since": "2026-03-01T11:00:00.000Z"}


def test_without_the_typed_word_nothing_happens(operator: Client) -> None:
    operator.post("/events/replay/", {"since": SINCE, "tenant": "", "word": ""})
    assert unpublished() == 0


def test_a_viewer_may_preview_and_not_replay(viewer: Client) -> None:
    assert 'name="word"' not in viewer.get("/events/replay/?since=1h").content.decode()
    sent = viewer.post("/events/replay/", {"since": SINCE, "tenant": "", "word": "replay"})
    assert (sent.status_code, unpublished()) == (403, 0)


@pytest.mark.parametrize(
    ("limit", "said"), [("MAX_REPLAYED", "exceed the limit of 3"), ("MAX_EXAMINED", "too far back")]
)
def test_a_replay_that_is_too_large_is_refused_with_the_command_to_run(
    operator: Client, monkeypatch: pytest.MonkeyPatch, limit: str, said: str
) -> None:
    monkeypatch.setattr(event_replay, limit, 3)
    page = operator.get("/events/replay/?since=2h").content.decode()
    assert said in page
    assert "manage.py outbox replay --since 2026-03-01T10:00:00.000Z" in page
    data = {"since": "2026-03-01T10:00:00Z", "tenant": "", "word": "replay"}
    sent = operator.post("/events/replay/", data, follow=True)
    assert "manage.py outbox replay" in sent.content.decode()
    assert unpublished() == 0


def test_skipped_events_are_not_replayed(at_noon: datetime, tenant: Tenant) -> None:
    OutboxEventFactory(tenant_id=tenant.tenant_id, published_at=at_noon, parked_at=at_noon, attempts=5)
    assert preview_replay(at_noon - timedelta(hours=1), None, 100).count == 6


@pytest.mark.parametrize(
    ("query", "said"),
    [("since=soon", "a time with its offset"), ("since=1h&tenant=acme", "Unknown tenant")],
)
def test_an_invalid_value_is_reported_at_its_field(viewer: Client, query: str, said: str) -> None:
    response = viewer.get(f"/events/replay/?{query}", HTTP_ACCEPT="text/html")
    assert response.status_code == 400
    assert said in response.content.decode()

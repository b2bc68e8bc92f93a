"""A select of tenants always contains the chosen one, however many tenants there are."""

from __future__ import annotations

import pytest
from django.test import Client

from eventservice.console.base import tenant_select
from eventservice.kernel.ids import new_id
from tests.factories import TenantFactory

pytestmark = pytest.mark.django_db

PAGES = ("/", "/calls/", "/timers/", "/audit-log/", "/events/", "/events/replay/?since=2h", "/webhooks/")


@pytest.mark.parametrize("page", PAGES)
def test_the_chosen_tenant_is_selected(viewer: Client, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    monkeypatch.setattr(tenant_select, "MAX_OPTIONS", 1)
    first, chosen = TenantFactory(name="a"), TenantFactory(name="b")
    text = viewer.get(f"{page}{'&' if '?' in page else '?'}tenant={chosen.pk}").content.decode()
    assert f'<option value="{chosen.pk}" selected>b</option>' in text
    assert f'<option value="{first.pk}">a</option>' in text


def test_a_replay_for_an_unknown_tenant_is_refused(operator: Client) -> None:
    answer = operator.get(f"/events/replay/?since=2h&tenant={new_id()}", headers={"Accept": "text/html"})
    assert answer.status_code == 400
    assert "Unknown tenant." in answer.content.decode()

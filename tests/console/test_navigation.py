"""The navigation of the console has a link for every section, and pages that moved redirect."""

from __future__ import annotations

import re

import pytest
from django.conf import settings
from django.test import Client

from eventservice.console.base.views import ConsoleView
from eventservice.console.urls import urlpatterns


def test_every_section_of_a_page_is_linked() -> None:
    template = (settings.BASE_DIR / "templates" / "console" / "_navigation.html").read_text()
    views = [getattr(pattern.callback, "view_class", None) for pattern in urlpatterns]
    sections = {view.nav for view in views if view is not None and issubclass(view, ConsoleView)}
    assert sections - {""} == set(re.findall(r'nav == "([\w-]+)"', template))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("/outbox/?show=parked&tenant=", "/events/?show=parked&tenant="),
        ("/outbox/7/", "/events/7/"),
        ("/outbox/replay/?since=2h", "/events/replay/?since=2h"),
        ("/outbox/webhooks/", "/webhooks/"),
        ("/outbox/webhooks/new/", "/webhooks/new/"),
        ("/actions/?user=ada", "/audit-log/?user=ada"),
    ],
)
def test_a_page_that_moved_redirects_with_its_query(old: str, new: str) -> None:
    response = Client().get(old)
    assert (response.status_code, response["Location"]) == (301, new)

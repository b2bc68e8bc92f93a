"""Admins pause and resume dispatch in the console, and every page says that it is paused."""

from __future__ import annotations

import pytest
from django.test import Client

from eventservice.operators.models import OperatorAction
from timers.pause import find_pause, pause_dispatch

pytestmark = pytest.mark.django_db

BANNER = "Dispatch is paused.</strong>"


@pytest.mark.parametrize(
    "path", ["/", "/calls/", "/timers/", "/events/", "/webhooks/", "/tenants/", "/cluster/", "/audit-log/"]
)
def test_every_page_says_that_dispatch_is_paused(viewer: Client, path: str) -> None:
    assert BANNER not in viewer.get(path).content.decode()
    pause_dispatch("ada", "Restored from monday.db")
    page = viewer.get(path).content.decode()
    assert BANNER in page
    assert "Restored from monday.db" in page
    assert "/dispatch/resume/" not in page
    # A part of a page is put into a page that says it already.
    assert BANNER not in viewer.get(path, headers={"HX-Request": "true"}).content.decode()


def test_an_admin_pauses_and_resumes(admin: Client) -> None:
    assert "/dispatch/pause/" in admin.get("/cluster/").content.decode()
    assert "Reason" in admin.get("/dispatch/pause/").content.decode()
    page = admin.post("/dispatch/pause/", {"reason": "Maintenance"}, follow=True).content.decode()
    assert BANNER in page
    assert "Maintenance" in page
    assert "/dispatch/resume/" in page
    assert "/dispatch/pause/" not in page
    assert "Calls that are due now: 0." in admin.get("/dispatch/resume/").content.decode()
    assert BANNER not in admin.post("/dispatch/resume/", follow=True).content.decode()
    entries = OperatorAction.across_tenants.order_by("id")
    assert [(entry.user, entry.action) for entry in entries] == [
        ("ada", "dispatch-pause"),
        ("ada", "dispatch-resume"),
    ]


def test_doing_it_twice_is_said_and_changes_nothing(admin: Client) -> None:
    assert "was not paused" in admin.post("/dispatch/resume/", follow=True).content.decode()
    pause_dispatch("ada", "first")
    assert "paused already" in admin.post("/dispatch/pause/", {"reason": "x"}, follow=True).content.decode()
    pause = find_pause()
    assert pause is not None
    assert pause.reason == "first"


def test_a_reason_that_is_too_long_is_refused(admin: Client) -> None:
    page = admin.post("/dispatch/pause/", {"reason": "x" * 201}, follow=True).content.decode()
    assert "reason must be at most 200 characters" in page
    assert find_pause() is None


def test_an_operator_may_do_neither(operator: Client) -> None:
    for path in ("/dispatch/pause/", "/dispatch/resume/"):
        assert operator.get(path).status_code == 403
        assert operator.post(path).status_code == 403
    assert find_pause() is None

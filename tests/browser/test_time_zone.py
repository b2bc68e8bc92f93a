"""Times are shown in the browser's zone without any setting, and in another one if the user chooses it."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.conftest import Desk
from tests.browser.marks import BROWSER
from tests.browser.system import System

pytestmark = BROWSER


def test_times_are_in_the_browsers_zone_or_the_chosen_one(desk: Desk, system: System) -> None:
    call = system.submit("in another zone", dueAt="2030-07-01T12:00:00Z")
    page = desk.sit("oscar", timezone_id="Europe/Berlin")
    page.goto("/calls/")  # the zone of the browser is known from the first page on
    page.goto(system.build_details_url(call))
    expect(page.locator(".timeline")).to_contain_text("2030-07-01 14:00:00.000 CEST (12:00:00 UTC)")
    page.get_by_role("button", name="Reschedule").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Time", exact=True)).to_have_value("14:00")
    expect(dialog.get_by_label("Time zone")).to_have_value("Europe/Berlin")
    dialog.get_by_role("link", name="Go back").click()
    page.get_by_role("link", name="Europe/Berlin").click()
    page.get_by_label("Time zone").select_option("America/New_York")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".banner.success")).to_contain_text("Preferences saved.")
    page.goto(system.build_details_url(call))
    expect(page.locator(".timeline")).to_contain_text("2030-07-01 08:00:00.000 EDT (12:00:00 UTC)")


def test_dates_of_filters_are_in_the_users_zone(desk: Desk, system: System) -> None:
    for hour in (10, 12):
        system.submit("at noon", dueAt=f"2031-07-01T{hour}:00:00Z")
    page = desk.sit("oscar", timezone_id="Europe/Berlin")
    page.goto("/calls/")
    page.goto("/calls/?name=at+noon")
    page.get_by_label("From").fill("2031-07-01T13:00:00")  # 11:00 UTC
    page.get_by_role("button", name="Filter", exact=True).click()
    expect(page).to_have_url(re.compile("zone=Europe"))
    expect(page.locator("table.list tbody tr")).to_have_count(1)
    expect(page.get_by_label("From")).to_have_value(re.compile("^2031-07-01T13:00"))

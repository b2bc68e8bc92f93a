"""The dashboard leads from a problem to the call that explains it, and from a bar to the list of its calls."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from eventservice.devtools.demo.companies import DEAD_HOST
from tests.browser.marks import BROWSER
from tests.browser.system import System

pytestmark = BROWSER


def test_a_failing_host_is_followed_to_the_call_and_to_its_error(page: Page) -> None:
    page.goto("/")
    attention = page.get_by_role("region", name="Needs attention")
    item = attention.get_by_role("listitem").filter(has_text=DEAD_HOST)
    item.get_by_role("link").click()
    expect(page).to_have_url(re.compile(f"/calls/.*host={re.escape(DEAD_HOST)}"))
    failed = page.locator("table.list tbody tr")
    expect(failed.first).to_contain_text("Look up price")
    failed.first.get_by_role("link", name="Details of Look up price").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Look up price")
    expect(page.locator("main")).to_contain_text("could not be resolved")


@pytest.mark.parametrize("tile", ["Overdue", "Running", "Event lag", "nodes"])
def test_a_tile_opens_the_list_of_its_calls(page: Page, system: System, tile: str) -> None:
    page.goto("/")
    link = page.locator("a.tile").filter(has_text=re.compile(tile, re.IGNORECASE)).first
    link.click()
    expect(page).not_to_have_url(f"{system.url}/")
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def test_a_bar_opens_the_list_of_its_calls(page: Page) -> None:
    page.goto("/?range=7d")
    bar = page.locator("section.plot svg.chart a").first
    expect(bar).to_be_attached()
    href = bar.get_attribute("href") or ""
    assert href.startswith("/calls/?"), href
    page.goto(href)
    expect(page.get_by_role("heading", level=1)).to_have_text("Calls")


def test_the_range_is_in_the_url(page: Page) -> None:
    page.goto("/")
    page.get_by_role("navigation", name="Range").get_by_role("link", name="24h", exact=True).click()
    expect(page).to_have_url(re.compile("range=24h"))
    page.reload()
    expect(page.get_by_role("navigation", name="Range").locator("[aria-current]")).to_have_text("24h")


def test_the_dashboard_can_show_one_tenant(page: Page) -> None:
    page.goto("/?range=7d")
    page.get_by_label("Tenant", exact=True).select_option("fjord-bank")
    expect(page).to_have_url(re.compile("tenant="))
    expect(page.get_by_role("region", name="Outcomes by host")).not_to_contain_text("parcelly")

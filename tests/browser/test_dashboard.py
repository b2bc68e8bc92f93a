"""The dashboard leads from a problem to the call that explains it, and from a bar to the list of its calls."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from eventservice.devtools.demo.companies import DEAD_HOST
from tests.browser.chromium import PHONE
from tests.browser.conftest import Desk, look_again
from tests.browser.marks import BROWSER
from tests.browser.system import System

pytestmark = BROWSER


def test_a_failing_host_is_followed_to_the_call_and_to_its_error(page: Page) -> None:
    page.goto("/")
    attention = page.get_by_role("region", name="Needs attention")
    item = attention.get_by_role("listitem").filter(has_text=DEAD_HOST)
    item.get_by_role("link").click()
    expect(page).to_have_url(re.compile(f"/calls/.*host=%22{re.escape(DEAD_HOST)}%22"))
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


def test_one_range_decides_about_tiles_and_charts(page: Page) -> None:
    for name, words in (("24h", "24 hours"), ("7d", "7 days")):
        page.goto("/?range=1h")
        page.get_by_role("navigation", name="Range").get_by_role("link", name=name, exact=True).click()
        expect(page.locator("a.tile").filter(has_text=f"Success ({name})")).to_be_visible()
        expect(page.locator("a.tile").filter(has_text=f"p95 lateness ({name})")).to_be_visible()
        chart = page.locator("#throughput-chart")
        expect(chart).to_have_attribute("aria-label", re.compile(f"in the last {words}"))


def test_errors_need_attention_before_warnings(page: Page) -> None:
    page.goto("/")
    items = page.get_by_role("region", name="Needs attention").get_by_role("listitem")
    expect(items.first).to_be_visible()
    severe = [item.locator(".bad").count() > 0 for item in items.all()]
    assert severe == sorted(severe, reverse=True)


def test_a_host_that_lets_calls_wait_is_followed_to_them(page: Page, system: System) -> None:
    retries = {"maxAttempts": 4, "initialInterval": "1h", "maxInterval": "1h"}
    for number in range(12):
        system.submit(f"outage {number}", "/status/503", retryPolicy=retries, tags=["outage"])
    page.goto("/calls/?tag=outage&retrying=1")
    expect(page.locator("#chip-Retrying .count")).to_have_text("12")
    page.goto(f"/?tenant={system.tenant}")
    attention = page.get_by_role("region", name="Needs attention")
    item = attention.get_by_role("listitem").filter(has_text="keep failing")
    expect(item).to_contain_text(system.target.removeprefix("http://"))
    expect(item).to_contain_text("HTTP 503")
    expect(page.locator("a.tile").filter(has_text="Retrying")).to_be_visible()
    item.get_by_role("link", name="Retrying calls").click()
    expect(page).to_have_url(re.compile("retrying=1"))
    expect(page.locator("table.list tbody tr").filter(has_text="outage").first).to_be_visible()


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


def read_tooltip(page: Page) -> str:
    tip = page.locator(".body:has(#throughput-chart) .tip")
    expect(tip).to_be_visible()
    return tip.inner_text()


def test_a_chart_tells_its_values_to_the_mouse(page: Page) -> None:
    page.goto("/?range=7d")
    columns = page.locator("#throughput-chart [data-when]")
    columns.last.locator(".hit").hover(position={"x": 1, "y": 3})
    assert "UTC" in read_tooltip(page)
    assert "Succeeded" in read_tooltip(page)
    page.get_by_role("heading", level=1).hover()
    expect(page.locator(".body:has(#throughput-chart) .tip")).to_be_hidden()


def test_a_chart_is_one_stop_for_the_keyboard_and_arrows_move_in_it(page: Page) -> None:
    page.goto("/?range=7d")
    chart = page.locator("#throughput-chart")
    expect(chart).to_have_attribute("tabindex", "0")
    expect(
        page.locator("#throughput-chart a[tabindex='0'], #throughput-chart a:not([tabindex])")
    ).to_have_count(0)
    chart.focus()
    page.keyboard.press("End")
    last = read_tooltip(page)
    page.keyboard.press("ArrowLeft")
    assert read_tooltip(page) != last
    expect(page.locator("#said")).to_contain_text("succeeded")
    look_again(page, "#figures")
    expect(chart).to_be_focused()
    assert read_tooltip(page) != last
    page.keyboard.press("Escape")
    expect(page.locator(".body:has(#throughput-chart) .tip")).to_be_hidden()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/calls/\?.*from="))


def test_the_first_tap_on_a_column_shows_its_values_and_the_second_opens_its_calls(desk: Desk) -> None:
    page = desk.sit("oscar", viewport=PHONE, has_touch=True, is_mobile=True)
    page.goto("/?range=7d")
    column = page.locator("#throughput-chart [data-when] .hit").last
    column.scroll_into_view_if_needed()
    column.tap(position={"x": 1, "y": 3})
    assert "Failed" in read_tooltip(page)
    expect(page).to_have_url(re.compile("range=7d"))
    column.tap(position={"x": 1, "y": 3})
    expect(page).to_have_url(re.compile(r"/calls/\?.*from="))

"""Keyboard shortcuts: a sheet lists them, they open pages and move among rows, and never act while somebody types."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Desk
from tests.browser.marks import BROWSER
from tests.browser.system import System

pytestmark = BROWSER


@pytest.mark.parametrize(
    ("keys", "heading"),
    [("gd", "Dashboard"), ("gc", "Calls"), ("n", "New call"), ("gt", "Timers"), ("ge", "Events"), ("gw", "Webhooks"),
     ("gn", "Tenants"), ("gk", "Cluster"), ("ga", "Audit log")],
)  # fmt: skip
def test_keys_open_pages(page: Page, keys: str, heading: str) -> None:
    page.goto("/keys/" if heading != "Tenants" else "/cluster/")
    page.wait_for_load_state()
    for key in keys:
        page.keyboard.press(key)
    expect(page.get_by_role("heading", level=1)).to_have_text(heading)


def test_the_sheet_lists_the_shortcuts_and_can_switch_them_off(page: Page, system: System) -> None:
    page.goto("/cluster/")
    page.keyboard.press("?")
    sheet = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(sheet).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("c")
    expect(page).to_have_url(f"{system.url}/cluster/")  # a dialog is open
    sheet.get_by_label("Use shortcuts in this browser").uncheck()
    page.keyboard.press("Escape")
    expect(sheet).to_be_hidden()
    page.keyboard.press("?")
    expect(sheet).to_be_hidden()
    page.get_by_role("button", name="Keyboard shortcuts").click()
    sheet.get_by_label("Use shortcuts in this browser").check()
    sheet.get_by_role("button", name="Close").click()
    page.keyboard.press("?")
    expect(sheet).to_be_visible()


def test_the_search_key_opens_the_search_of_calls_where_a_page_has_none(page: Page, system: System) -> None:
    page.goto("/")
    page.wait_for_load_state()
    page.keyboard.press("/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Calls")
    expect(page.locator("main [data-search], main .filters input:not([type=hidden])").first).to_be_focused()
    expect(page).to_have_url(f"{system.url}/calls/")


def test_a_viewer_has_no_shortcut_for_what_only_operators_may_do(desk: Desk, system: System) -> None:
    page = desk.sit("vera")
    page.goto("/cluster/")
    page.keyboard.press("n")
    page.keyboard.press("?")
    sheet = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(sheet).to_contain_text("Calls")
    expect(sheet).not_to_contain_text("New call")
    expect(page).to_have_url(f"{system.url}/cluster/")


def test_rows_are_chosen_selected_and_opened_with_keys(page: Page) -> None:
    page.goto("/calls/?status=Failed")
    rows = page.locator("table.list tbody tr")
    focused = page.locator("table.list tbody tr:focus-within")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(rows.nth(1).get_by_role("checkbox")).to_be_checked()
    expect(focused).to_have_count(1)
    page.keyboard.press("k")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/calls/[0-9a-f-]{36}/[0-9a-f-]{36}/"))


def test_a_slash_goes_to_the_search_and_typing_is_left_alone(page: Page, system: System) -> None:
    page.goto("/timers/")
    page.keyboard.press("/")
    field = page.get_by_label("Timer id begins with")
    expect(field).to_be_focused()
    page.keyboard.type("gn?order")
    expect(field).to_have_value("gn?order")
    expect(page).to_have_url(f"{system.url}/timers/")


def test_updates_are_paused_with_a_key(page: Page) -> None:
    page.goto("/cluster/")
    page.keyboard.press("p")
    expect(page.locator(".live")).to_contain_text("Paused")
    page.keyboard.press("p")
    expect(page.locator(".live")).to_contain_text("Live")

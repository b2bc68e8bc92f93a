"""Signing in with the keyboard, error messages, and the effect on other tabs."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Desk, look_again, sign_in
from tests.browser.marks import BROWSER
from tests.browser.system import PASSWORD

pytestmark = BROWSER


def test_signing_in_returns_to_the_requested_page(desk: Desk) -> None:
    page = desk.sit(None)
    page.goto("/cluster/?x=1")
    expect(page).to_have_url(f"{desk.system.url}/login/?next=/cluster/%3Fx%3D1")
    page.keyboard.type("vera")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{desk.system.url}/cluster/?x=1")


def test_a_wrong_password_is_announced_to_screen_readers(desk: Desk) -> None:
    page = desk.sit(None)
    page.goto("/login/")
    page.get_by_label("Username").fill("vera")
    page.get_by_label("Password").fill("a guess")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("Wrong username or password")
    expect(page.get_by_label("Username")).to_have_value("vera")


def test_signing_out_takes_one_click(desk: Desk) -> None:
    page = desk.sit(None)
    sign_in(page, "vera")
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(f"{desk.system.url}/login/")
    page.goto("/calls/")
    expect(page.get_by_label("Password")).to_be_visible()


def sign_in_here(page: Page) -> None:
    page.get_by_label("Username").fill("oscar")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()


@pytest.mark.parametrize("javascript", [True, False], ids=["with JavaScript", "without"])
def test_two_tabs_can_both_be_signed_in(desk: Desk, javascript: bool) -> None:
    first = desk.sit(None, java_script_enabled=javascript)
    second = first.context.new_page()
    for tab in (first, second):
        tab.goto("/login/?next=/cluster/")
    for tab in (first, second):
        sign_in_here(tab)
        expect(tab).to_have_url(f"{desk.system.url}/cluster/")


def test_a_tab_keeps_working_after_another_has_signed_in_again(desk: Desk) -> None:
    page = desk.sit(None)
    sign_in(page, "oscar")
    page.goto("/calls/?status=Failed&limit=10")
    other = page.context.new_page()
    other.goto("/cluster/")
    other.get_by_role("button", name="Sign out").click()
    expect(other).to_have_url(f"{desk.system.url}/login/")
    sign_in(other, "oscar")
    with page.expect_response(lambda response: "/calls/look/" in response.url) as looked:
        look_again(page, "#counts")
    assert looked.value.ok
    star = page.get_by_role("button", name="Favorite").first
    pressed = star.get_attribute("aria-pressed")
    star.click()
    expect(star).to_have_attribute("aria-pressed", "false" if pressed == "true" else "true")
    expect(page.locator("#connection")).to_be_hidden()


def test_a_list_keeps_its_filters_when_the_session_has_ended(desk: Desk) -> None:
    page = desk.sit(None)
    desk.watch(page).expected += ["answered 401", "status of 401"]
    sign_in(page, "oscar")
    shown = f"{desk.system.url}/calls/?status=Failed&limit=10"
    page.goto(shown)
    page.context.clear_cookies(name="sessionid")
    look_again(page, "#counts")
    expect(page.get_by_label("Password")).to_be_visible()
    sign_in_here(page)
    expect(page).to_have_url(shown)

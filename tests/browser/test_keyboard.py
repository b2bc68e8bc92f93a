"""Everything can be reached with the keyboard, the focus is visible, and dialogs return it."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.conftest import Desk, look_again
from tests.browser.marks import BROWSER
from tests.browser.system import PASSWORD, System

pytestmark = BROWSER

FOCUSED = "document.activeElement"


def tab_to(page: Page, selector: str, max_tabs: int = 80) -> None:
    """Press Tab until the element has the focus."""
    for _ in range(max_tabs):
        page.keyboard.press("Tab")
        if page.evaluate(f"{FOCUSED}.matches({selector!r})"):
            return
    raise AssertionError(f"{selector} is not reached within {max_tabs} tabs")


def test_from_signing_in_to_the_details_of_a_call_without_a_mouse(desk: Desk, system: System) -> None:
    page = desk.sit(None)
    page.goto("/login/?next=/calls/new/")
    expect(page.get_by_label("Username")).to_be_focused()
    page.keyboard.type("oscar")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{system.url}/calls/new/")
    page.wait_for_load_state()
    page.keyboard.press("Tab")
    assert page.evaluate(f"{FOCUSED}.className") == "skip"
    page.keyboard.press("Enter")
    tab_to(page, "#tenant")
    page.keyboard.type("demo")
    tab_to(page, "#name")
    page.keyboard.type("without a mouse")
    tab_to(page, "#url")
    page.keyboard.type(f"{system.target}/ok")
    page.keyboard.press("Enter")
    expect(page.locator("#response")).to_contain_text("Succeeded")
    tab_to(page, "#response a.button", max_tabs=120)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("without a mouse")


def test_escape_closes_a_dialog_and_the_focus_returns(page: Page, system: System) -> None:
    call = system.submit("stays", delay="6h")
    page.goto(system.build_details_url(call))
    opener = page.get_by_role("button", name=re.compile("Cancel"))
    opener.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    assert page.evaluate(f"document.querySelector('dialog').contains({FOCUSED})")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(opener).to_be_focused()
    assert system.call_api("GET", f"/service-calls/{call}")["status"] == "Scheduled"


def test_the_focus_stays_inside_an_open_dialog(page: Page, system: System) -> None:
    page.goto(system.build_details_url(system.submit("stays as well", delay="6h")))
    page.get_by_role("button", name=re.compile("Cancel")).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    for _ in range(12):
        page.keyboard.press("Tab")
        inside = f"document.querySelector('dialog').contains({FOCUSED}) || {FOCUSED} === document.body"
        assert page.evaluate(inside)


def test_a_refresh_leaves_the_focus_where_it_is(page: Page, system: System) -> None:
    system.wait_for_end(system.submit("in focus"))
    page.goto("/calls/?name=in+focus")
    box = page.get_by_role("checkbox", name="Select in focus")
    box.check()
    with page.expect_response(lambda response: "hx-request" in response.request.headers):
        look_again(page, "#counts")
    expect(box).to_be_focused()
    expect(box).to_be_checked()

"""What the admin's own pages do with a script."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.marks import BROWSER
from tests.browser.system import System

pytestmark = BROWSER


def test_what_is_confirmed_is_sent_once_however_often_it_is_pressed(page: Page, system: System) -> None:
    call = system.submit("replayed in the admin")
    system.ended(call)
    page.goto(f"/admin/orchestration/servicecall/?q={call}")
    page.locator("input.action-select").check()
    page.locator("select[name=action]").select_option("replay")
    page.locator(".actions button").click()
    yes = page.get_by_role("button", name="Yes: Replay (retry)")
    expect(yes).to_be_visible()
    # The answer is still to come: the page stays.
    page.evaluate("""() => {
        window.sent = 0;
        window.addEventListener("submit", (event) => {
            if (!event.defaultPrevented) window.sent += 1;
            event.preventDefault();
        });
    }""")
    yes.dblclick()
    assert page.evaluate("window.sent") == 1

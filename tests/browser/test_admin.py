"""Pages of the admin that need JavaScript."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.conftest import Desk
from tests.browser.marks import BROWSER
from tests.browser.system import System

pytestmark = BROWSER


def test_the_tenant_of_a_new_namespace_is_chosen_in_a_popup(desk: Desk) -> None:
    page = desk.sit("ada")
    page.goto("/admin/tenants/namespace/add/")
    with page.expect_popup() as opened:
        page.locator("#lookup_id_tenant").click()
    opened.value.get_by_role("link", name="fjord-bank").click()
    expect(page.get_by_label("Tenant")).to_have_value(re.compile("^[0-9a-f-]{36}$"))


def test_a_confirmation_is_sent_once_however_often_the_button_is_pressed(page: Page, system: System) -> None:
    call = system.submit("replayed in the admin")
    system.wait_for_end(call)
    page.goto(f"/admin/orchestration/servicecall/?q={call}")
    page.locator("input.action-select").check()
    page.locator("select[name=action]").select_option("replay")
    page.locator(".actions button").click()
    yes = page.get_by_role("button", name="Replay (retry)")
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

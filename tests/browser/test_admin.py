"""What the admin's own pages do with a script."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.conftest import Desk
from tests.browser.marks import BROWSER
from tests.browser.system import System

pytestmark = BROWSER


def test_a_namespaces_tenant_is_looked_up_in_a_window_of_its_own(desk: Desk) -> None:
    page = desk.sit("ada")
    page.goto("/admin/tenants/namespace/add/")
    with page.expect_popup() as opened:
        page.locator("#lookup_id_tenant").click()
    opened.value.get_by_role("link", name="fjord-bank").click()
    expect(page.get_by_label("Tenant")).to_have_value(re.compile("^[0-9a-f-]{36}$"))


def test_what_is_confirmed_is_sent_once_however_often_it_is_pressed(page: Page, system: System) -> None:
    call = system.submit("replayed in the admin")
    system.ended(call)
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

"""The essential tasks of an operator work with forms and links alone."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Desk, confirm
from tests.browser.marks import BROWSER
from tests.browser.system import System

pytestmark = BROWSER


@pytest.fixture
def plain(desk: Desk) -> Page:
    return desk.sit("oscar", java_script_enabled=False)


def test_a_call_is_submitted_and_its_response_shown(plain: Page, system: System) -> None:
    plain.goto("/calls/new/")
    plain.get_by_label("Tenant").select_option("demo")
    plain.get_by_label("Name", exact=True).fill("by plain HTML")
    plain.get_by_label("URL", exact=True).fill(f"{system.target}/ok")
    plain.get_by_label("Body", exact=True).fill('{"n": 1}')
    plain.get_by_role("button", name="Submit").click()
    expect(plain.locator("#response").get_by_role("link", name="Details")).to_be_visible()
    (call,) = system.call_api("GET", "/service-calls?name=by+plain+HTML")["items"]
    system.wait_for_end(call["serviceCallId"])
    plain.reload()
    expect(plain.locator("#response")).to_contain_text("Succeeded")
    expect(plain.get_by_label("Response body")).to_contain_text("true")


def test_a_call_is_canceled_after_a_confirmation(plain: Page, system: System) -> None:
    call = system.submit("to be canceled plainly", delay="6h")
    plain.goto(system.build_details_url(call))
    plain.get_by_role("button", name=re.compile("Cancel")).click()
    confirm(plain.locator("form.confirm"))
    expect(plain.locator(".head .pill")).to_have_text("Canceled")
    assert system.call_api("GET", f"/service-calls/{call}")["status"] == "Canceled"


def test_the_list_has_filters_favorites_and_pages(plain: Page, system: System) -> None:
    system.wait_for_end(system.submit("plainly starred"))
    plain.goto("/calls/?limit=10")
    plain.get_by_label("Name", exact=True).fill("plainly starred")
    plain.get_by_role("button", name="Filter", exact=True).click()
    plain.get_by_role("button", name="Favorite").click()
    expect(plain).to_have_url(re.compile("name=plainly"))
    expect(plain.get_by_role("button", name="Favorite")).to_have_attribute("aria-pressed", "true")
    plain.goto("/calls/?limit=10")
    plain.get_by_role("link", name="Next page").click()
    expect(plain.locator("table.list tbody tr")).to_have_count(10)

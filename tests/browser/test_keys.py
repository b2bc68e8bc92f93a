"""Admins create keys, which are shown once, rotate them with an overlap, and revoke them."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Desk, confirm
from tests.browser.marks import BROWSER
from tests.browser.system import System

pytestmark = BROWSER


@pytest.fixture
def admin(desk: Desk) -> Page:
    return desk.sit("ada")


def get_status(system: System, key: str) -> int:
    url = f"{system.url}/api/v1/tenants/{system.tenant}/service-calls?limit=1"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def read_key(page: Page) -> str:
    return page.locator("#new-key").inner_text().strip()


def test_a_key_is_created_shown_once_rotated_and_revoked(admin: Page, system: System) -> None:
    admin.goto("/tenants/")
    admin.get_by_role("link", name="demo", exact=True).click()
    admin.get_by_role("link", name="New key").click()
    admin.get_by_label("Name", exact=True).fill("a test's")
    admin.get_by_role("checkbox", name=re.compile("^read")).check()
    admin.get_by_role("button", name="Create key").click()
    first = read_key(admin)
    assert get_status(system, first) == 200
    admin.get_by_role("link", name="Done").click()
    expect(admin.get_by_role("link", name="Rotate a test's")).to_be_visible()
    assert first not in admin.content()

    admin.get_by_role("link", name="Rotate a test's").click()
    expect(admin.get_by_role("dialog").get_by_label("Keep the old key valid for")).to_be_focused()
    admin.get_by_role("dialog").get_by_role("button", name="Create new key").click()
    second = read_key(admin)
    assert second != first
    assert (get_status(system, first), get_status(system, second)) == (200, 200)
    admin.get_by_role("link", name="Done").click()

    revoke = admin.locator(f'a[href$="/keys/{second.split("_")[2]}/revoke/"]')
    revoke.click()
    confirm(admin.locator("dialog form.confirm"))
    ended = admin.get_by_role("row").filter(has_text=second.split("_")[2]).filter(has_text="revoked")
    expect(ended).to_have_count(1)
    admin.wait_for_timeout(1100)  # a process may go by what it knew for a second
    assert get_status(system, second) == 401


def test_an_operator_sees_keys_and_no_actions_on_them(page: Page, system: System) -> None:
    page.goto(f"/tenants/{system.tenant}/")
    expect(page.get_by_role("heading", level=1)).to_contain_text("demo")
    expect(page.get_by_role("link", name=re.compile("^(Rotate|Revoke|New key)"))).to_have_count(0)

"""Every page loads without an error, is readable in light and dark mode, and fits on every screen."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.chromium import PHONE, WIDE
from tests.browser.conftest import Desk
from tests.browser.marks import BROWSER
from tests.browser.page_urls import fill_route, find_examples, list_routes
from tests.browser.system import System

pytestmark = BROWSER

ROUTES = list_routes()
CONTRAST = (Path(__file__).parent / "contrast.js").read_text()
CUT = (Path(__file__).parent / "cut.js").read_text()
# Laptops, a tablet, a phone.
WIDTHS = (1280, 1024, 820, PHONE["width"])
# Actions on a scheduled call, which do not exist for one that has ended.
OF_SCHEDULED = {"call-cancel", "call-reschedule", "call-run-now"}
# The demo data has nothing for these pages.
WITHOUT_EXAMPLE = {
    "endpoint", "delivery", "endpoint-disable", "endpoint-delete", "endpoint-resend", "operator-key-rotate", "operator-key-revoke",
    "tenant-secret-clear",
}  # fmt: skip
# These pages begin with a form on another page.
BY_POST = {"calls-bulk", "calls-bulk-run"}
# This page has the key of what it shows in its query.
BY_QUERY = {"timer"}


@dataclass
class Looks:
    """The problems of each kind, by the name of the page. Pages without a problem are left out."""

    statuses: dict[str, Any] = field(default_factory=dict)
    headings: dict[str, Any] = field(default_factory=dict)
    nameless: dict[str, Any] = field(default_factory=dict)
    faint_in_light: dict[str, Any] = field(default_factory=dict)
    faint_in_dark: dict[str, Any] = field(default_factory=dict)
    cut: dict[str, Any] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)


@pytest.fixture(scope="package")
def looks(browser: Browser, system: System, profiles: dict[str, BrowserContext]) -> Looks:
    """Inspect each page once for all tests, since opening it takes longest."""
    desk = Desk(browser, system, profiles)
    page, looks = desk.sit("ada"), Looks()
    for name, address in list_addresses(page).items():
        _inspect(page, name, address, looks)
    looks.troubles = desk.watch(page).troubles
    desk.leave()
    return looks


def _inspect(page: Page, name: str, address: str, looks: Looks) -> None:
    page.set_viewport_size(WIDE)
    page.emulate_media(color_scheme="light")
    answer = page.goto(address)
    nameless = [line for line in page.locator("body").aria_snapshot().splitlines() if is_nameless(line)]
    seen: dict[str, Any] = {
        "statuses": answer and answer.status != 200 and answer.status,
        "headings": page.locator("main h1, main .confirm h2").count() != 1,
        "nameless": nameless,
        "faint_in_light": page.evaluate(CONTRAST),
    }
    page.emulate_media(color_scheme="dark")
    seen["faint_in_dark"] = page.evaluate(CONTRAST)
    seen["cut"] = {width: wrong for width in WIDTHS if (wrong := _cut(page, width))}
    for kind, wrong in seen.items():
        if wrong:
            getattr(looks, kind)[name] = wrong


def _cut(page: Page, width: int) -> list[str]:
    page.set_viewport_size({"width": width, "height": PHONE["height"]})
    return page.evaluate(CUT)  # type: ignore[no-any-return]


def list_addresses(page: Page) -> dict[str, str]:
    found = find_examples(page)
    places = {}
    for name, route in ROUTES.items():
        if name not in WITHOUT_EXAMPLE | BY_POST | BY_QUERY:
            values = found.get("/scheduled" if name in OF_SCHEDULED else f"/{route.split('/')[1]}", {})
            places[name] = fill_route(route, values)
    tabs = {f"call, {tab}": f"{places['call']}?tab={tab}" for tab in ("request", "attempts", "events")}
    page.goto("/timers/?show=all")
    places["timer"] = page.locator("#timer-list td.name a").first.get_attribute("href") or ""
    return (
        places
        | tabs
        | {
            "calls, none": "/calls/?name=nobody",
            "timers, all": "/timers/?show=all",
            "dashboard, a week": "/?range=7d",
        }
    )


def test_every_page_loads_without_an_error(looks: Looks) -> None:
    assert (looks.statuses, looks.troubles) == ({}, [])


def test_every_page_has_one_heading(looks: Looks) -> None:
    assert looks.headings == {}


def test_every_text_has_enough_contrast_in_light_mode(looks: Looks) -> None:
    assert looks.faint_in_light == {}


def test_every_text_has_enough_contrast_in_dark_mode(looks: Looks) -> None:
    assert looks.faint_in_dark == {}


def test_every_page_fits_on_laptops_tablets_and_phones(looks: Looks) -> None:
    """No page scrolls sideways, and no control is cut off."""
    assert looks.cut == {}


@pytest.mark.parametrize("width", [1280, 1100, 1024, 820])
def test_the_link_to_the_details_of_a_call_is_visible(desk: Desk, width: int) -> None:
    page = desk.sit("oscar", viewport={"width": width, "height": 900})
    page.goto("/calls/")
    link = page.get_by_role("link", name="Details of").first
    link.scroll_into_view_if_needed()
    expect(link).to_be_in_viewport(ratio=1)
    assert page.evaluate("scrollX") == 0


@pytest.mark.parametrize("width", [820, PHONE["width"]])
def test_a_list_without_columns_can_still_be_sorted_and_selected(desk: Desk, width: int) -> None:
    page = desk.sit("oscar", viewport={"width": width, "height": 900})
    page.goto("/calls/")
    page.get_by_role("checkbox", name="Select all on this page").check()
    expect(page.get_by_role("checkbox", name="Select ").last).to_be_checked()
    page.get_by_role("link", name="Execution").click()
    expect(page).to_have_url(re.compile("sort="))


def test_a_phone_shows_the_whole_reason_why_an_event_is_parked(desk: Desk) -> None:
    """A phone cannot hover to show a tooltip."""
    page = desk.sit("oscar", viewport=PHONE)
    page.goto("/events/")
    reason = page.get_by_role("region", name="Parked").locator(".why").first
    expect(reason).to_have_text(re.compile("ACCESS_REFUSED"))
    assert reason.evaluate("one => one.scrollHeight <= one.clientHeight")


@pytest.mark.parametrize("width", [1280, 820])
def test_the_name_of_a_role_lease_stays_on_one_line(desk: Desk, width: int) -> None:
    page = desk.sit("oscar", viewport={"width": width, "height": 900})
    page.goto("/cluster/")
    seat = page.get_by_text("eventservice/dispatcher", exact=True)
    expect(seat).to_be_visible()
    lines = "one => { const all = document.createRange(); all.selectNodeContents(one); return all.getClientRects().length }"
    assert seat.evaluate(lines) == 1


def test_a_long_error_without_spaces_stays_in_its_card(desk: Desk) -> None:
    page = desk.sit("oscar", viewport={"width": 1400, "height": 900})
    page.goto("/calls/new/")
    page.get_by_label("Tags").fill("x" * 90)
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_text("must be at most 64 characters")).to_be_visible()
    assert page.evaluate(CUT) == []


def test_a_tag_that_is_too_long_is_refused_and_not_truncated(desk: Desk, system: System) -> None:
    page = desk.sit("oscar")
    page.goto(system.build_details_url(system.submit("to be tagged", delay="1h")))
    page.get_by_label("Add a tag").fill("x" * 65)
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("64")
    expect(page.get_by_role("link", name="x" * 64)).to_have_count(0)


def test_every_button_link_and_field_has_a_name(looks: Looks) -> None:
    """The browser computes the name, as it does for a screen reader."""
    assert looks.nameless == {}


def test_the_menu_opens_and_navigates_on_a_phone(desk: Desk, system: System) -> None:
    page = desk.sit("oscar", viewport=PHONE, has_touch=True, is_mobile=True)
    page.goto("/cluster/")
    link = page.get_by_role("navigation", name="Console").get_by_role("link", name="Events")
    expect(link).to_be_hidden()
    page.get_by_role("button", name="Menu").tap()
    expect(page.get_by_role("button", name="Menu")).to_have_attribute("aria-expanded", "true")
    link.tap()
    expect(page).to_have_url(f"{system.url}/events/")


def is_nameless(line: str) -> bool:
    role, *rest = line.strip().removeprefix("- ").rstrip(":").split(" ", 1)
    controls = {"button", "link", "textbox", "combobox", "checkbox", "radio", "searchbox", "spinbutton"}
    return role in controls and not (rest and rest[0].startswith(('"', "/")))


def test_every_admin_list_loads_without_an_error(desk: Desk, system: System) -> None:
    page = desk.sit("ada")
    page.goto("/admin/")
    lists = page.locator("#content-main th a[href]").evaluate_all("links => links.map((a) => a.pathname)")
    assert "/admin/orchestration/servicecall/" in lists
    for address in lists:
        answer = page.goto(address)
        assert answer is not None
        assert answer.status == 200, address
    page.goto("/admin/orchestration/servicecall/")
    page.locator("#result_list tbody th a").first.click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def test_a_chosen_theme_is_kept(desk: Desk) -> None:
    page = desk.sit("oscar", color_scheme="light")
    page.goto("/cluster/")
    page.get_by_role("button", name="Theme").click()
    chosen = page.evaluate("document.documentElement.dataset.theme")
    assert chosen in ("light", "dark")
    page.goto("/audit-log/")
    assert page.evaluate("document.documentElement.dataset.theme") == chosen

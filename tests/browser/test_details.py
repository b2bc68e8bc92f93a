"""The details of a call: its state, its attempts and events, and the actions on it."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.chromium import PHONE
from tests.browser.conftest import Desk
from tests.browser.marks import BROWSER
from tests.browser.system import System

pytestmark = BROWSER


def test_all_attempts_and_events_of_a_retried_call_are_shown(page: Page, system: System) -> None:
    retries = {"maxAttempts": 3, "initialInterval": "1s", "maxInterval": "1s"}
    call = system.submit("flaky", "/flaky/1", retryPolicy=retries)
    assert system.wait_for_end(call)["attempts"] == 2
    page.goto(system.build_details_url(call))
    tabs = page.get_by_role("navigation", name="Call details")
    expect(page.get_by_label("Response body")).to_contain_text("ok")
    tabs.get_by_role("link", name="Attempts (2)").click()
    rows = page.locator("table.list tbody tr")
    expect(rows.filter(has_text="503")).to_have_count(1)
    expect(rows.filter(has_text="200")).to_have_count(1)
    tabs.get_by_role("link", name="Events").click()
    expect(page.locator("ol.events strong")).to_have_text([
        "ServiceCallSubmitted", "ServiceCallScheduled", "DueTimeReached", "ServiceCallRunning",
        "ServiceCallRescheduled", "DueTimeReached", "ServiceCallRunning", "ServiceCallSucceeded",
    ])  # fmt: skip
    tabs.get_by_role("link", name="Request").click()
    expect(page.get_by_label("Request body")).to_contain_text("from")


def test_the_header_has_the_method_and_the_whole_url(page: Page, system: System) -> None:
    path = "/ok?order=4711&note=" + "x" * 300
    page.goto(system.build_details_url(system.submit("with its address", path)))
    expect(page.locator(".head .method")).to_have_text("POST")
    expect(page.locator("#request-url")).to_have_text(f"{system.target}{path}")


def test_the_outcome_comes_first_on_a_phone(desk: Desk, system: System) -> None:
    call = system.submit("failed on the way", "/status/422")
    system.wait_for_end(call)
    page = desk.sit("oscar", viewport=PHONE, has_touch=True, is_mobile=True)
    page.goto(system.build_details_url(call))
    outcome = page.locator("#outcome .answer-line .pill")
    expect(outcome).to_contain_text("422")
    expect(outcome).to_be_in_viewport()
    tops = [page.locator(part).bounding_box()["y"] for part in ("#outcome", "dl.about", ".timeline")]  # type: ignore[index]
    assert tops == sorted(tops)


def test_a_secret_header_is_masked_everywhere(page: Page, system: System) -> None:
    request = {
        "method": "GET",
        "url": f"{system.target}/ok",
        "headers": {"Authorization": "Bearer s3cret-s3cret"},
    }
    made = system.call_api("POST", "/service-calls", {"name": "with a secret", "requestSpec": request})
    system.wait_for_end(made["serviceCallId"])
    for tab in ("request", "response", "attempts", "events"):
        page.goto(f"{system.build_details_url(made['serviceCallId'])}?tab={tab}")
        assert "s3cret" not in page.content()
    page.get_by_role("button", name="Copy as curl").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("curl")
    assert "s3cret" not in dialog.inner_text()


def test_a_scheduled_call_is_run_now_and_the_page_follows_it(page: Page, system: System) -> None:
    call = system.submit("not before the evening", delay="6h")
    page.goto(system.build_details_url(call))
    page.get_by_role("button", name="Run now").click()
    page.get_by_role("dialog").get_by_role("button", name="Run now").click()
    expect(page.locator(".head .pill")).to_have_text("Succeeded")


def test_a_replay_names_its_origin(page: Page, system: System) -> None:
    call = system.submit("to be replayed")
    system.wait_for_end(call)
    page.goto(system.build_details_url(call))
    page.get_by_role("button", name="Replay").click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("Replay")).click()
    expect(page).not_to_have_url(re.compile(call))
    expect(page.locator("dl.facts").first).to_contain_text(call)


def test_a_duplicate_fills_in_the_form(page: Page, system: System) -> None:
    call = system.submit("the original", "/echo", delay="6h")
    page.goto(system.build_details_url(call))
    page.get_by_role("link", name="Duplicate").click()
    expect(page.get_by_label("Name", exact=True)).to_have_value("the original")
    expect(page.get_by_label("URL", exact=True)).to_have_value(f"{system.target}/echo")


def test_a_call_is_rescheduled_in_the_dialog(page: Page, system: System) -> None:
    call = system.submit("for another day", delay="6h")
    page.goto(system.build_details_url(call))
    page.get_by_role("button", name="Reschedule").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Date").fill("2031-05-06")
    dialog.get_by_label("Time", exact=True).fill("07:08:09")
    dialog.get_by_label("Time zone").select_option("UTC")
    dialog.get_by_role("button", name="Reschedule").click()
    expect(page.locator(".head")).to_contain_text("2031")
    assert system.call_api("GET", f"/service-calls/{call}")["dueAt"] == "2031-05-06T07:08:09.000Z"


def test_a_tag_is_added_and_removed(page: Page, system: System) -> None:
    call = system.submit("to be tagged", delay="6h")
    page.goto(system.build_details_url(call))
    page.get_by_label("Add a tag").fill("urgent")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("link", name="urgent")).to_be_visible()
    page.get_by_role("button", name="Remove tag urgent").click()
    expect(page.get_by_role("link", name="urgent")).to_have_count(0)


def test_an_unknown_call_is_reported(desk: Desk, page: Page, system: System) -> None:
    desk.watch(page).expected.append("404")
    page.goto(system.build_details_url("01900000-0000-7000-8000-000000000000"))
    expect(page.get_by_role("alert")).to_be_visible()

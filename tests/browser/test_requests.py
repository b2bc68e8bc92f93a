"""A new call from the form to its response, now and scheduled."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect

from eventservice.console.calls.request_form import DEFAULT_RETRIES
from tests.browser.conftest import Desk, sign_in
from tests.browser.marks import BROWSER
from tests.browser.system import PASSWORD, System

pytestmark = BROWSER


def fill_in(page: Page, system: System, name: str, path: str = "/ok") -> None:
    page.goto("/calls/new/")
    page.get_by_label("Tenant").select_option("demo")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Method").select_option("POST")
    page.get_by_label("URL", exact=True).fill(f"{system.target}{path}")


def submit(page: Page) -> None:
    page.get_by_role("button", name="Submit").click()


def test_a_call_for_now_shows_its_response_on_the_same_page(page: Page, system: System) -> None:
    fill_in(page, system, "from the form", "/echo")
    page.get_by_label("Name of header 1").fill("X-Order")
    page.get_by_label("Value of header 1").fill("4711")
    page.get_by_label("Body", exact=True).fill('{"order": 4711}')
    submit(page)
    response = page.locator("#response")
    expect(response).to_contain_text("Succeeded")
    expect(response).to_contain_text("200")
    expect(response.get_by_label("Response body")).to_contain_text("4711")
    expect(response.get_by_role("row", name=re.compile("content-type", re.IGNORECASE))).to_be_visible()


def test_an_error_response_is_shown(page: Page, system: System) -> None:
    fill_in(page, system, "refused", "/status/422")
    submit(page)
    response = page.locator("#response")
    expect(response).to_contain_text("Failed")
    expect(response).to_contain_text("422")


def test_a_scheduled_call_shows_when_it_is_due_and_can_be_canceled(page: Page, system: System) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    fill_in(page, system, "for tomorrow")
    page.get_by_label("Schedule").check()
    page.get_by_label("Date").fill(tomorrow.strftime("%Y-%m-%d"))
    page.get_by_label("Time", exact=True).fill("12:00:00")
    page.get_by_label("Time zone").select_option("UTC")
    expect(page.locator("#resolved")).to_contain_text("12:00:00 UTC")
    submit(page)
    expect(page.locator("#response")).to_contain_text("Scheduled")
    page.locator("#response").get_by_role("link", name="Details").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("for tomorrow")
    page.get_by_role("button", name=re.compile("^Cancel")).click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("^Cancel")).click()
    expect(page.locator(".head .pill")).to_have_text("Canceled")
    (call,) = system.call_api("GET", "/service-calls?name=for+tomorrow")["items"]
    assert call["status"] == "Canceled"


@pytest.mark.parametrize("javascript", [True, False], ids=["with JavaScript", "without"])
def test_a_call_is_scheduled_by_a_preset_or_a_distance_from_now(
    desk: Desk, system: System, javascript: bool
) -> None:
    page = desk.sit("oscar", java_script_enabled=javascript)
    name = f"in a while {javascript}"
    fill_in(page, system, name)
    page.get_by_label("Schedule").check()
    page.get_by_role("button", name="In 10 minutes").click()
    expect(page.locator("#resolved")).to_contain_text(re.compile("in (10 m|9 m)"))
    page.get_by_label("In", exact=True).fill("3")
    page.get_by_label("Unit").select_option("hours")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.locator("#resolved")).to_contain_text(re.compile("in (3 h|2 h 59 m)"))
    submit(page)
    expect(page.locator("#response")).to_contain_text("Scheduled")
    (call,) = system.call_api("GET", f"/service-calls?name={name.replace(' ', '+')}")["items"]
    distance = datetime.fromisoformat(call["dueAt"]) - datetime.now(UTC)
    assert timedelta(hours=2, minutes=58) < distance < timedelta(hours=3)


def test_a_call_is_rescheduled_by_a_preset(page: Page, system: System) -> None:
    call = system.submit("sooner than planned", delay="9h")
    page.goto(system.build_details_url(call))
    page.get_by_role("button", name="Reschedule").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="In 1 hour").click()
    expect(dialog.locator("#resolved")).to_contain_text(re.compile("in (1 h|59 m)"))
    dialog.get_by_role("button", name="Reschedule").last.click()
    expect(page.locator(".banner.success")).to_contain_text("Rescheduled to")
    due = datetime.fromisoformat(system.call_api("GET", f"/service-calls/{call}")["dueAt"])
    assert timedelta(minutes=58) < due - datetime.now(UTC) < timedelta(hours=1)


def test_a_failed_call_is_retried_unless_the_form_says_otherwise(page: Page, system: System) -> None:
    fill_in(page, system, "with the offered retries", "/status/503")
    expect(page.get_by_label("Max attempts")).to_have_value("5")
    submit(page)
    expect(page.locator("#response")).to_contain_text("Retrying")
    expect(page.locator("#response")).to_contain_text(re.compile(r"\([2-5] of 5\)"))
    fill_in(page, system, "without retries", "/status/503")
    page.get_by_label("Max attempts").fill("1")
    submit(page)
    expect(page.locator("#response")).to_contain_text("Failed")


def test_errors_are_shown_at_their_fields_and_nothing_is_sent(page: Page, system: System) -> None:
    fill_in(page, system, "")
    page.get_by_label("Body", exact=True).fill('{"order": }')
    submit(page)
    expect(page.get_by_role("alert").first).to_contain_text("Not sent")
    expect(page.get_by_label("Name", exact=True)).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Body", exact=True)).to_have_value('{"order": }')
    expect(page.locator("#body-said")).to_contain_text("line 1")


def test_a_time_that_is_too_far_away_is_reported_before_submitting(page: Page, system: System) -> None:
    fill_in(page, system, "too far away")
    page.get_by_label("Schedule").check()
    page.get_by_label("Date").fill("2090-10-31")
    page.get_by_label("Time", exact=True).fill("12:00:00")
    expect(page.locator("#resolved")).to_contain_text("within ten years")


def test_input_is_restored_after_a_session_ended_except_header_values(desk: Desk, system: System) -> None:
    page = desk.sit(None)
    desk.watch(page).expected += ["answered 401", "status of 401"]
    sign_in(page, "oscar")
    fill_in(page, system, "typed before the session ended")
    page.get_by_label("Name of header 1").fill("Authorization")
    page.get_by_label("Value of header 1").fill("Bearer s3cret")
    page.get_by_label("Body", exact=True).fill('{\n  "order": 4711\n}')
    page.context.clear_cookies(name="sessionid")
    submit(page)
    expect(page.get_by_label("Password")).to_be_visible()
    assert "s3cret" not in page.evaluate("JSON.stringify(sessionStorage)")
    page.get_by_label("Username").fill("oscar")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert").first).to_contain_text("Your input is restored")
    expect(page.get_by_label("Name", exact=True)).to_have_value("typed before the session ended")
    expect(page.get_by_label("Body", exact=True)).to_have_value('{\n  "order": 4711\n}')
    expect(page.get_by_label("Name of header 1")).to_have_value("Authorization")
    expect(page.get_by_label("Value of header 1")).to_have_value("")
    assert page.evaluate("sessionStorage.getItem('request')") is None
    page.get_by_label("Value of header 1").fill("Bearer s3cret")
    submit(page)
    expect(page.locator("#response")).to_contain_text("Succeeded")
    assert len(system.call_api("GET", "/service-calls?name=typed+before+the+session+ended")["items"]) == 1


def test_input_is_not_restored_for_another_user(desk: Desk, system: System) -> None:
    page = desk.sit(None)
    desk.watch(page).expected += ["answered 401", "status of 401"]
    sign_in(page, "oscar")
    fill_in(page, system, "oscar's own")
    page.context.clear_cookies(name="sessionid")
    submit(page)
    expect(page.get_by_label("Password")).to_be_visible()
    page.get_by_label("Username").fill("ada")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert").first).to_contain_text("nothing was sent")
    expect(page.get_by_label("Name", exact=True)).to_have_value("")
    assert page.evaluate("sessionStorage.getItem('request')") is None


def test_a_form_from_before_the_last_sign_in_keeps_its_input_without_javascript(
    desk: Desk, system: System
) -> None:
    page = desk.sit(None, java_script_enabled=False)
    desk.watch(page).expected += ["answered 403", "status of 403"]
    sign_in(page, "oscar")
    fill_in(page, system, "typed before signing in")
    other = page.context.new_page()
    other.goto("/cluster/")
    other.get_by_role("button", name="Sign out").click()
    expect(other).to_have_url(f"{system.url}/login/")
    sign_in(other, "oscar")
    submit(page)
    expect(page.get_by_role("alert").first).to_contain_text("Not sent")
    expect(page.get_by_label("Name", exact=True)).to_have_value("typed before signing in")
    submit(page)
    expect(page.locator("#response").get_by_role("link", name="Details")).to_be_visible()


def test_a_form_creates_one_call_however_often_it_is_sent(page: Page, system: System) -> None:
    fill_in(page, system, "pressed twice")
    form = page.locator("#request-form")
    sent: dict[str, str | float | bool] = {}
    for field in form.locator("input[type=hidden]").all():
        sent[field.get_attribute("name") or ""] = field.input_value()
    sent |= {"tenant": system.tenant, "name": "pressed twice", "method": "POST", "url": f"{system.target}/ok"}
    sent |= {"when": "now", "body": "", "body_kind": "json", "do": "submit"}
    sent |= DEFAULT_RETRIES
    page.get_by_role("button", name="Submit").dblclick()
    expect(page.locator("#response")).to_contain_text("Succeeded")
    again = page.request.post("/calls/new/", form=sent, headers={"Referer": f"{system.url}/calls/new/"})
    assert again.status == 200
    assert len(system.call_api("GET", "/service-calls?name=pressed+twice")["items"]) == 1


def test_header_rows_are_added_and_removed(page: Page, system: System) -> None:
    fill_in(page, system, "headers")
    names = page.get_by_label(re.compile(r"^Name of header \d+"))
    before = names.count()
    for number in range(before):
        names.nth(number).fill(f"X-Header-{number}")
    page.get_by_role("button", name="Add row").click()
    fresh = page.get_by_label(f"Name of header {before + 1}", exact=True)
    expect(fresh).to_be_focused()
    expect(fresh).to_have_value("")
    page.get_by_role("button", name="Remove header 1").click()
    expect(names.first).to_have_value("X-Header-1" if before > 1 else "")


def test_a_curl_command_fills_in_the_form(page: Page, system: System) -> None:
    page.goto("/calls/new/")
    page.get_by_text("Import curl").click()
    page.get_by_label("A curl command").fill(
        f"curl -X PUT '{system.target}/echo' -H 'X-Order: 1' --data-raw '{{\"n\":1}}'"
    )
    page.get_by_role("button", name="Import", exact=True).click()
    expect(page.get_by_label("URL", exact=True)).to_have_value(f"{system.target}/echo")
    expect(page.get_by_label("Method")).to_have_value("PUT")
    expect(page.get_by_label("Name of header 1")).to_have_value("X-Order")


@pytest.mark.parametrize("javascript", [True, False], ids=["with JavaScript", "without"])
def test_a_body_with_a_script_runs_nothing(desk: Desk, system: System, javascript: bool) -> None:
    page = desk.sit("oscar", java_script_enabled=javascript)
    fill_in(page, system, "hostile <b>name</b>", "/echo")
    page.get_by_label("Body", exact=True).fill(
        '{"x": "<script>document.title = 1</script><img src=//evil.example/>"}'
    )
    submit(page)
    expect(page.locator("#response").get_by_role("link", name="Details")).to_be_visible()
    call = system.call_api("GET", "/service-calls?name=hostile+%3Cb%3Ename%3C%2Fb%3E")["items"][0]
    system.wait_for_end(call["serviceCallId"])
    page.goto(system.build_details_url(call["serviceCallId"]))
    expect(page.get_by_role("heading", level=1)).to_contain_text("hostile <b>name</b>")

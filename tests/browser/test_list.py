"""The list of calls: filters, pages, favorites, bulk actions and updates."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from eventservice.devtools.demo.companies import DEAD_HOST
from tests.browser.chromium import PHONE
from tests.browser.conftest import Desk, confirm, look_again
from tests.browser.marks import BROWSER
from tests.browser.system import System

pytestmark = BROWSER


def rows(page: Page) -> Locator:
    return page.locator("table.list tbody tr")


def read_query(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def test_filters_are_in_the_url_and_can_be_removed(page: Page) -> None:
    page.goto("/calls/")
    page.get_by_label("Tenant").select_option("harbor-books")
    page.get_by_label("Name", exact=True).fill("Order webhook")
    page.get_by_label("Tag", exact=True).fill("webhooks")
    page.get_by_role("button", name="Filter", exact=True).click()
    expect(page).to_have_url(re.compile("name=Order"))
    page.wait_for_load_state()
    assert set(page.locator("table.list td.called a.name").all_inner_texts()) == {"Order webhook"}
    page.get_by_role("link", name=re.compile("^Name: Order webhook")).click()
    expect(page).not_to_have_url(re.compile("name=Order"))
    assert read_query(page)["tag"] == ["webhooks"]


def test_a_prefix_finds_calls_and_values_are_suggested(page: Page, system: System) -> None:
    for name in ("Prefixed stock", "Prefixed prices", "not Prefixed"):
        system.submit(name, delay="5h", tags=["prefix-tag"])
    page.goto(f"/calls/?tenant={system.tenant}")
    field = page.get_by_label("Name", exact=True)
    field.press_sequentially("prefixed s")
    option = page.locator("#known-names option")
    expect(option).to_have_count(1)
    expect(option).to_have_attribute("value", "Prefixed stock")
    field.fill("Prefixed")
    page.get_by_label("Tag", exact=True).press_sequentially("prefix")
    expect(page.locator('#known-tags option[value="prefix-tag"]')).to_have_count(1)
    page.get_by_label("Tag", exact=True).fill("")
    page.get_by_role("button", name="Filter", exact=True).click()
    expect(page).to_have_url(re.compile("name=Prefixed"))
    expect(page.locator("td.called a.name")).to_have_text(["Prefixed prices", "Prefixed stock"])


def test_an_id_leads_to_its_call_and_a_correlation_id_to_its_trace(page: Page, system: System) -> None:
    call = system.submit("known by its id")
    correlation = system.wait_for_end(call)["correlationId"]
    for text, address in (
        (call, system.build_details_url(call)),
        (correlation, f"/traces/{system.tenant}/{correlation}/"),
    ):
        page.goto("/calls/")
        page.get_by_label("ID", exact=True).fill(text)
        page.get_by_role("button", name="Filter", exact=True).click()
        expect(page).to_have_url(f"{system.url}{address}")
    expect(page.get_by_role("link", name="known by its id")).to_be_visible()


def test_a_status_chip_shows_the_calls_of_that_status_only(page: Page) -> None:
    page.goto("/calls/")
    page.get_by_role("navigation", name="Status").get_by_role("link", name=re.compile("^Failed")).click()
    expect(page).to_have_url(re.compile("status=Failed"))
    page.wait_for_load_state()
    assert set(page.locator("table.list tbody .state .pill").all_inner_texts()) == {"Failed"}


def test_paging_shows_no_call_twice(page: Page) -> None:
    page.goto("/calls/?sort=submittedAt&limit=10")
    seen: list[str] = []
    for _ in range(3):
        expect(rows(page)).to_have_count(10)
        seen += [href or "" for href in (a.get_attribute("href") for a in page.locator("td.go a").all())]
        before = page.url
        page.get_by_role("link", name="Next page").click()
        expect(page).not_to_have_url(before)
    assert len(seen) == len(set(seen)) == 30
    for _ in range(2):
        before = page.url
        page.get_by_role("link", name="Previous page").click()
        expect(page).not_to_have_url(before)
    expect(page.locator("td.go a").nth(0)).to_have_attribute("href", seen[10])


def test_the_page_size_is_chosen_and_kept(page: Page) -> None:
    page.goto("/calls/?status=Succeeded")
    page.get_by_label("Calls per page").select_option("25")
    expect(page).to_have_url(re.compile("limit=25"))
    expect(rows(page)).to_have_count(25)
    assert read_query(page)["status"] == ["Succeeded"]


def test_favorites_can_be_listed(page: Page, system: System) -> None:
    call = system.submit("to be starred")
    system.wait_for_end(call)
    page.goto("/calls/?name=to+be+starred")
    star = page.get_by_role("button", name="Favorite")
    star.click()
    expect(page.get_by_role("button", name="Favorite")).to_have_attribute("aria-pressed", "true")
    page.goto("/calls/")
    page.get_by_role("link", name="Favorites").click()
    expect(page).to_have_url(re.compile("favorites=1"))
    expect(page.locator("td.called a.name", has_text="to be starred")).to_be_visible()
    page.wait_for_load_state()
    assert all(pressed == "true" for pressed in page.locator("td.pick button").evaluate_all(
        "buttons => buttons.map((b) => b.getAttribute('aria-pressed'))"
    ))  # fmt: skip


def test_failed_calls_are_replayed_in_bulk_after_a_confirmation(page: Page, system: System) -> None:
    for _ in range(3):
        system.wait_for_end(system.submit("fails thrice", "/status/422", tags=["bulk"]))
    page.goto("/calls/?name=fails+thrice&status=Failed")
    expect(rows(page)).to_have_count(3)
    page.get_by_label("Apply to").select_option("matching")
    page.get_by_role("button", name="Replay…").click()
    form = page.locator("form.confirm")
    expect(form.get_by_role("heading", level=2)).to_contain_text("Replay 3 calls?")
    expect(form.locator("input[name=word]")).to_have_count(0)  # few calls need no typing
    confirm(form)
    expect(page.locator(".banner.success")).to_contain_text("Replayed 3 calls.")
    replays = system.call_api("GET", "/service-calls?name=fails+thrice&limit=20")["items"]
    assert len(replays) == 6


def test_many_calls_are_canceled_only_after_typing_their_number(page: Page, system: System) -> None:
    for _ in range(21):
        system.submit("one of many", delay="2h")
    page.goto("/calls/?name=one+of+many&status=Scheduled")
    page.get_by_label("Apply to").select_option("matching")
    page.get_by_role("button", name="Cancel…").click()
    form = page.locator("form.confirm")
    expect(form.get_by_label("Type 21 to confirm")).to_be_visible()
    confirm(form)
    expect(page.locator(".banner.success")).to_contain_text("Canceled 21 calls.")


def test_only_selected_calls_are_canceled(page: Page, system: System) -> None:
    calls = [system.submit("wait for it", delay="2h") for _ in range(3)]
    page.goto("/calls/?name=wait+for+it&status=Scheduled")
    page.get_by_role("checkbox", name="Select wait for it").nth(0).check()
    page.get_by_role("checkbox", name="Select wait for it").nth(1).check()
    page.get_by_role("button", name="Cancel…").click()
    form = page.locator("form.confirm")
    expect(form.get_by_role("heading", level=2)).to_contain_text("2")
    confirm(form)
    expect(page.locator(".banner.success")).to_contain_text("2 ")
    statuses = [system.call_api("GET", f"/service-calls/{call}")["status"] for call in calls]
    assert sorted(statuses) == ["Canceled", "Canceled", "Scheduled"]


def test_a_failed_refresh_keeps_the_list_and_says_so(desk: Desk, system: System) -> None:
    page = desk.sit("oscar")
    desk.watch(page).expected += [r"^/calls/: (failed|console error|answered)"]
    page.goto("/calls/?limit=10")
    expect(rows(page)).to_have_count(10)

    def fail(route: Route) -> None:
        if route.request.headers.get("hx-request"):
            route.abort()
        else:
            route.continue_()

    page.route("**/*", fail)
    look_again(page, "#counts")
    expect(page.locator("#connection")).to_be_visible()
    expect(rows(page)).to_have_count(10)
    page.unroute("**/*")
    look_again(page, "#counts")
    expect(page.locator("#connection")).to_be_hidden()


def test_new_calls_are_announced_and_do_not_move_the_rows(page: Page, system: System) -> None:
    system.wait_for_end(system.submit("on show"))
    page.goto("/calls/?tenant=" + system.tenant)
    first = page.locator("td.go a").first.get_attribute("href")
    system.submit("came later")
    look_again(page, "#counts")
    news = page.get_by_role("link", name=re.compile("new — show"))
    expect(news).to_be_visible()
    assert page.locator("td.go a").first.get_attribute("href") == first
    news.click()
    expect(page.locator("td.called a.name").first).to_have_text("came later")


def test_the_live_list_can_be_paused(page: Page) -> None:
    page.goto("/calls/")
    pause = page.get_by_role("button", name="Pause")
    pause.click()
    expect(page.locator("[data-pause]")).to_have_attribute("aria-pressed", "true")


def test_an_empty_result_leads_to_the_next_step(page: Page) -> None:
    page.goto("/calls/?name=nobody+is+called+like+this")
    expect(page.locator(".empty")).to_contain_text(re.compile("filter", re.IGNORECASE))


# --- the row as a link ------------------------------------------------------------------------------------------------


def get_row(page: Page, name: str) -> Locator:
    return rows(page).filter(has=page.get_by_role("link", name=name, exact=True))


@pytest.mark.parametrize("javascript", [True, False], ids=["with JavaScript", "without"])
def test_a_row_opens_its_call_wherever_it_is_clicked(desk: Desk, system: System, javascript: bool) -> None:
    name = f"opened by its row {javascript}"
    address = system.url + system.build_details_url(system.submit(name, delay="5h", tags=["row"]))
    page = desk.sit("oscar", java_script_enabled=javascript)
    # The name, the host, the times, the state, and the empty room between them.
    for selector in ("a.name", ".target", "td.submitted", ".execution time", ".state .pill", "td.key"):
        page.goto(f"/calls/?tenant={system.tenant}")
        part = get_row(page, name).locator(selector)
        box = part.bounding_box()
        assert box
        page.mouse.click(box["x"] + 3, box["y"] + box["height"] - 3)
        expect(page).to_have_url(address)


def test_a_row_opens_in_a_new_tab_by_a_middle_click_and_by_the_keyboard(page: Page, system: System) -> None:
    address = system.url + system.build_details_url(system.submit("opened beside", delay="5h"))
    page.goto(f"/calls/?tenant={system.tenant}")
    with page.context.expect_page() as opened:
        get_row(page, "opened beside").locator("td.submitted").click(button="middle")
    expect(opened.value).to_have_url(address)
    opened.value.close()
    page.get_by_role("link", name="opened beside", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(address)


def test_the_controls_of_a_row_do_not_open_it(page: Page, system: System) -> None:
    system.submit("with controls", delay="5h")
    page.goto(f"/calls/?tenant={system.tenant}")
    address = page.url
    row = get_row(page, "with controls")
    row.get_by_role("checkbox").check()
    row.get_by_role("button", name="Favorite").click()
    expect(row.get_by_role("button", name="Favorite")).to_have_attribute("aria-pressed", "true")
    row.get_by_role("button", name="Copy ID").click()
    expect(page).to_have_url(address)
    expect(row.get_by_role("checkbox")).to_be_checked()


def test_a_call_between_two_attempts_is_retrying(page: Page, system: System) -> None:
    retries = {"maxAttempts": 4, "initialInterval": "1h", "maxInterval": "1h"}
    call = system.submit("tried again later", "/status/503", retryPolicy=retries)
    address = f"/calls/?tenant={system.tenant}&name=tried+again+later"
    page.goto(address)
    row = get_row(page, "tried again later")
    expect(row.locator(".state")).to_have_text(re.compile("Retrying.*HTTP 503", re.DOTALL))
    expect(row.locator(".execution")).to_contain_text("Attempt 2 of 4 in")
    page.goto(system.build_details_url(call))
    expect(page.locator(".head .pill")).to_have_text("Retrying")
    expect(page.locator(".head")).to_contain_text("status 503. The next attempt (2 of 4) is due in")


def test_calls_between_attempts_are_listed_by_their_chip(page: Page, system: System) -> None:
    retries = {"maxAttempts": 4, "initialInterval": "1h", "maxInterval": "1h"}
    tags = ["between-attempts"]
    system.submit("waits for its next attempt", "/status/503", retryPolicy=retries, tags=tags)
    system.submit("was never attempted", delay="5h", tags=tags)
    page.goto("/calls/?tag=between-attempts")
    expect(page.locator("#chip-All .count")).to_have_text("2")
    expect(page.locator("#chip-Retrying .count")).to_have_text("1")
    page.locator("#chip-Retrying").click()
    expect(page.locator("td.called a.name")).to_have_text(["waits for its next attempt"])
    assert read_query(page)["retrying"] == ["1"]
    page.locator("#chip-Retrying").click()
    expect(rows(page)).to_have_count(2)


def test_the_last_error_is_in_the_list_in_words(page: Page, system: System) -> None:
    call = system.submit("answered with an error", "/status/404")
    system.wait_for_end(call)
    page.goto(f"/calls/?tenant={system.tenant}&name=answered+with+an+error")
    expect(get_row(page, "answered with an error").locator(".state")).to_contain_text("HTTP 404")
    page.goto(f"/calls/?host=%22{DEAD_HOST}%22&status=Failed")
    states = page.locator("table.list tbody .state")
    expect(states.first).to_be_visible()
    words = {text.split("\n")[-1].strip() for text in states.all_inner_texts()}
    assert words <= {"DNS lookup failed", "Connection failed", "Timed out"}


@pytest.mark.parametrize("query", ["status=Failed", "status=Scheduled", "status=Succeeded", ""])
def test_rows_are_compact_on_a_phone(desk: Desk, query: str) -> None:
    page = desk.sit("oscar", viewport=PHONE, has_touch=True, is_mobile=True)
    page.goto(f"/calls/?limit=100&{query}")
    heights = rows(page).evaluate_all("rows => rows.map((row) => row.getBoundingClientRect().height)")
    assert heights
    assert max(heights) <= 120


def test_the_form_for_all_matching_calls_follows_the_counts(page: Page, system: System) -> None:
    system.submit("counted", delay="6h", tags=["counted"])
    page.goto("/calls/?tag=counted")
    option = page.locator("#bulk-of option[value=matching]")
    expect(option).to_have_text("All matching calls (1)")
    system.submit("counted", delay="6h", tags=["counted"])
    look_again(page, "#counts")
    expect(page.locator("#chip-All .count")).to_have_text("2")
    expect(option).to_have_text("All matching calls (2)")

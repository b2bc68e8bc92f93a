"""Each page is where its name in the navigation leads, and shows what the name says."""

from __future__ import annotations

import re
import time

from playwright.sync_api import Page, expect

from tests.browser.conftest import Desk
from tests.browser.marks import BROWSER
from tests.browser.system import System

pytestmark = BROWSER

PAGES = ["Dashboard", "Calls", "New call", "Timers", "Events", "Webhooks", "Tenants", "Cluster", "Audit log"]


def test_each_name_leads_to_a_page_of_that_name(page: Page) -> None:
    page.goto("/")
    navigation = page.get_by_role("navigation", name="Console")
    names = [name.strip() for name in navigation.get_by_role("link").all_inner_texts()]
    assert names == [*PAGES, "Admin", "API"]
    for name in PAGES:
        navigation.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        expect(navigation.locator("[aria-current=page]")).to_have_text(re.compile(name))


def test_durable_timers_are_found_by_their_ids(page: Page, system: System) -> None:
    for number in range(3):
        document = {
            "id": f"found/{number}",
            "executeAt": "2031-03-01T12:00:00Z",
            "callbackUrl": f"{system.target}/ok",
        }
        system.call_api("POST", "/timers/create", document)
    page.goto(f"/timers/?tenant={system.tenant}")
    page.get_by_label("Timer id begins with").fill("found/")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("table.list tbody tr")).to_have_count(3)
    page.get_by_role("link", name="found/1").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("found/1")


def test_the_cluster_page_shows_processes_and_folds_the_shards(page: Page) -> None:
    page.goto("/cluster/")
    nodes = page.get_by_role("region", name="Nodes")
    for role in ("engine", "dispatcher"):
        expect(nodes.locator("tbody tr").filter(has_text=role).first).to_be_visible()
    shards = page.get_by_role("region", name="Shards")
    assert shards.locator("tbody tr").count() <= 3
    shards.get_by_role("link", name=re.compile("^All")).click()
    expect(page).to_have_url(re.compile("shards=all"))
    expect(shards.locator("tbody tr").nth(15)).to_be_visible()


def test_a_tenant_shows_what_it_uses_beside_its_limits(desk: Desk, system: System) -> None:
    page = desk.sit("vera")
    system.submit("pending beside the limit", delay="5h")
    page.goto(f"/tenants/{system.tenant}/")
    facts = page.get_by_role("region", name="Details")
    for name in ("In flight", "Pending", "Stored"):
        expect(facts.get_by_role("meter", name=name)).to_be_visible()
    expect(facts).to_contain_text(re.compile(r"of 1,000,000"))


def test_a_parked_event_follows_its_state_after_a_retry(page: Page, system: System) -> None:
    call = system.submit("has a parked event", delay="5h").replace("-", "")
    of_call = "replace(aggregate_id, '-', '') = ?"
    select = f"SELECT id FROM outbox WHERE {of_call} AND published_at IS NOT NULL"
    deadline = time.monotonic() + 20
    while not (found := system.execute(select, call)):
        assert time.monotonic() < deadline, "its first event is not published"
        time.sleep(0.1)
    parked = "published_at = NULL, parked_at = created_at, attempts = 5, last_error = 'ACCESS_REFUSED'"
    system.execute(f"UPDATE outbox SET {parked} WHERE {of_call}", call)
    page.goto(f"/events/{found[0][0]}/")
    state = page.locator("main .head h1 .pill")
    expect(state).to_have_text("Parked")
    page.get_by_role("button", name="Retry").click()
    # Without reloading the page.
    expect(state).to_have_text("Published", timeout=20_000)

"""An endpoint is created, tried with a test event, retried, and deleted with its deliveries, in the console alone."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from pathlib import Path

from playwright.sync_api import Page, expect

from outbox.publishers.webhook.delivery_queue import MAX_ATTEMPTS
from tests.browser.chromium import PHONE
from tests.browser.conftest import Desk, confirm
from tests.browser.marks import BROWSER
from tests.browser.system import System

pytestmark = BROWSER

CONTRAST = (Path(__file__).parent / "contrast.js").read_text()
CUT = (Path(__file__).parent / "cut.js").read_text()


def test_from_a_new_endpoint_to_a_delivered_test_event_and_its_end(desk: Desk, system: System) -> None:
    page = desk.sit("ada")
    page.goto("/webhooks/new/")
    page.get_by_label("Tenant").select_option("demo")
    page.get_by_label("URL").fill(f"{system.target}/status/500?token=hunter2")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Endpoint created")
    page.get_by_role("button", name="Send test event").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("WebhookTest")
    expect(page.get_by_role("region", name="Response")).to_contain_text("HTTP 500")
    expect(page.locator("#delivery")).to_contain_text("retrying")
    assert "hunter2" not in page.content()
    for width in (1280, PHONE["width"]):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(CUT) == []
        assert not page.evaluate(CONTRAST)
    page.locator("#delivery .head").get_by_role("link").last.click()
    row = page.locator("table.list tbody tr").filter(has_text="WebhookTest")
    expect(row).to_contain_text("HTTP 500")
    for width in (PHONE["width"], 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(CUT) == []
        assert not page.evaluate(CONTRAST)
    page.get_by_role("link", name="Delete…").or_(page.get_by_role("button", name="Delete…")).click()
    form = page.get_by_role("dialog").locator("form")
    # Other tests make events of the same tenant meanwhile.
    expect(form).to_contain_text(re.compile("[0-9]+ pending deliver(y|ies) will never be sent"))
    confirm(form)
    expect(page.get_by_role("heading", level=1)).to_have_text("Webhooks")
    expect(page.locator("main")).to_contain_text("deleted")
    expect(page.locator("table.list")).to_have_count(0)


def wait_for_attempts(page: Page, minimum: int) -> None:
    """Wait until the page of a delivery shows so many attempts, or more."""
    enough = "|".join(str(number) for number in range(minimum, MAX_ATTEMPTS + 1))
    shown = re.compile(rf"\b({enough}) of at most")
    expect(page.locator("#delivery")).to_contain_text(shown, timeout=25_000)


def postpone_for_hours(system: System, delivery_id: str) -> int:
    """Let a delivery wait long, as it does after many attempts. Return how many it has had."""
    where = "FROM webhook_deliveries WHERE replace(delivery_id, '-', '') = ?"
    key, later = delivery_id.replace("-", ""), ""
    while True:
        ((due, attempts, state),) = system.execute(f"SELECT next_attempt_at, attempts, state {where}", key)
        if due == later:  # no attempt that was on its way has replaced it
            return int(attempts)
        assert state == "Pending"
        # No retry is further ahead than six hours.
        moment = datetime.fromisoformat(due[:19]) + timedelta(hours=3)
        later = moment.isoformat(sep=due[10]) + due[19:]
        statement = (
            "UPDATE webhook_deliveries SET next_attempt_at = ? WHERE replace(delivery_id, '-', '') = ?"
        )
        system.execute(statement, later, key)
        time.sleep(1)


def test_a_failing_endpoint_is_named_in_the_list_and_retried_at_once(desk: Desk, system: System) -> None:
    page = desk.sit("ada")
    url = f"{system.target}/status/503?of=a-failing-endpoint"
    page.goto("/webhooks/new/")
    page.get_by_label("Tenant").select_option("demo")
    page.get_by_label("URL").fill(url)
    page.get_by_role("button", name="Create").click()
    page.get_by_role("button", name="Send test event").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("WebhookTest")
    delivery = page.url
    wait_for_attempts(page, 2)
    attempts = postpone_for_hours(system, delivery.rstrip("/").rpartition("/")[2])

    page.goto("/webhooks/")
    row = page.locator("table.list tbody tr").filter(has_text="/status/503")
    expect(row).to_contain_text("failing")
    expect(row).to_contain_text("HTTP 503")
    for width in (PHONE["width"], 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(CUT) == []
        assert not page.evaluate(CONTRAST)
    row.get_by_role("link").first.click()
    expect(page.locator(".head .pill")).to_have_text("failing")
    page.get_by_role("button", name="Retry now").click()
    expect(page.get_by_role("status").filter(has_text="due now")).to_be_visible()
    page.goto(delivery)
    wait_for_attempts(page, attempts + 1)
    page.locator("#delivery .head").get_by_role("link").last.click()
    page.get_by_role("link", name="Delete…").or_(page.get_by_role("button", name="Delete…")).click()
    confirm(page.get_by_role("dialog").locator("form"))
    expect(page.get_by_role("heading", level=1)).to_have_text("Webhooks")


def test_a_refused_endpoint_is_told_why(desk: Desk) -> None:
    page = desk.sit("ada")
    desk.watch(page).expected += ["answered 400", "status of 400"]
    page.goto("/webhooks/new/")
    page.get_by_label("Tenant").select_option("demo")
    page.get_by_label("URL").fill("http://169.254.169.254/latest")
    page.get_by_role("button", name="Create").click()
    expect(page.locator(".field .wrong")).to_contain_text("link-local")
    expect(page.get_by_label("URL")).to_have_value("http://169.254.169.254/latest")

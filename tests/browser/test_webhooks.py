"""An endpoint is created, tried with a test event, and deleted with its deliveries, in the console alone."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import expect

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

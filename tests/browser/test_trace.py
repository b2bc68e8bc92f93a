"""The trace of a correlation id: opened from a call, followed live, and readable with many calls and long names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chromium import PHONE, WIDE
from tests.browser.conftest import Desk
from tests.browser.marks import BROWSER
from tests.browser.system import System

pytestmark = BROWSER

CONTRAST = (Path(__file__).parent / "contrast.js").read_text()
CUT = (Path(__file__).parent / "cut.js").read_text()
MANY, ON_PAGE = 40, 25


def submit_batch(system: System, names: list[str], path: str = "/ok", **terms: Any) -> str:
    """Submit calls in one request and return the address of their trace."""
    spec = {"method": "POST", "url": f"{system.target}{path}"}
    items = [{"name": name, "requestSpec": spec, **terms} for name in names]
    made = system.call_api("POST", "/service-calls/batch", {"items": items})
    call = system.call_api("GET", f"/service-calls/{made['items'][0]['serviceCallId']}")
    return f"/traces/{system.tenant}/{call['correlationId']}/"


@pytest.fixture(scope="module")
def crowded(system: System) -> str:
    """The address of the trace of many calls, whose names are as long as they can be."""
    return submit_batch(
        system, ["x" * 200, *(f"{n:03} " + "word " * 39 for n in range(MANY - 1))], delay="6h"
    )


def test_a_trace_is_opened_from_its_call_and_shows_what_happened(page: Page, system: System) -> None:
    retries = {"maxAttempts": 3, "initialInterval": "0.1s", "maxInterval": "0.1s"}
    call = system.submit("traced", "/flaky/1", retryPolicy=retries)
    ended = system.wait_for_end(call)
    page.goto(system.build_details_url(call))
    page.get_by_role("link", name=ended["correlationId"]).click()
    expect(page).to_have_url(f"{system.url}/traces/{system.tenant}/{ended['correlationId']}/")
    expect(page.get_by_role("heading", name="Trace", exact=True)).to_be_visible()
    expect(page.locator("#correlation-id")).to_have_text(ended["correlationId"])
    expect(page.get_by_role("button", name="Copy correlation ID")).to_be_visible()
    expect(page.locator("svg.trace-bar rect:not(.waiting)")).to_have_count(2)
    steps = page.locator("ol.steps-of-call strong").all_inner_texts()
    assert {"Timer set", "Timer reached", "ServiceCallRescheduled"} <= set(steps)
    assert [name for name in steps if name.startswith("Attempt")] == ["Attempt 1", "Attempt 2"]
    page.get_by_role("navigation", name="Steps").get_by_role("link", name="Attempts").click()
    expect(page.locator("ol.steps-of-call strong")).to_have_text(["Attempt 1", "Attempt 2"])
    page.get_by_role("link", name="Attempt 1").click()
    expect(page.get_by_label("Response body")).to_contain_text("flaky")


def test_a_trace_is_followed_live(page: Page, system: System) -> None:
    page.goto(submit_batch(system, ["slow one", "another"], "/delay/3"))
    expect(page.locator(".trace .pill.running")).to_have_count(2)
    expect(page.locator(".trace .pill.succeeded")).to_have_count(2)
    expect(page.get_by_role("navigation", name="Lists of these calls")).to_contain_text("Succeeded 2")


@pytest.mark.parametrize("width", [WIDE["width"], 1024, 820, PHONE["width"]])
def test_many_calls_with_long_names_fit(desk: Desk, crowded: str, width: int) -> None:
    page = desk.sit("oscar", viewport={"width": width, "height": 900}, color_scheme="dark")
    for query in ("", "?show=all"):
        page.goto(crowded + query)
        expect(page.locator(".trace > li")).to_have_count(ON_PAGE)
        assert page.evaluate(CUT) == []
        assert page.evaluate(CONTRAST) == []
    expect(page.locator("ol.steps-of-call")).to_have_count(ON_PAGE)


def test_a_long_trace_is_read_page_by_page(page: Page, crowded: str) -> None:
    page.goto(crowded)
    expect(page.locator("ol.steps-of-call")).to_have_count(0)
    expect(page.get_by_text(re.compile(f"{ON_PAGE} of {MANY} calls"))).to_be_visible()
    page.get_by_role("link", name="More calls").click()
    expect(page.locator(".trace > li")).to_have_count(MANY - ON_PAGE)
    page.get_by_role("link", name="First page").click()
    expect(page.locator(".trace > li")).to_have_count(ON_PAGE)

"""A view is one read: a page, or a refresh of its live part, is one request, so all that it shows is of one moment."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Request

from tests.browser.conftest import look_again
from tests.browser.marks import BROWSER
from tests.browser.system import System

pytestmark = BROWSER

# The pages that refresh themselves, with the part that does.
LIVE_PAGES = {
    "/": "#figures",
    "/calls/": "#counts",
    "/timers/?show=all": "#timer-list",
    "/events/": "#events-status",
    "/cluster/": "#cluster",
    "call": "[data-live]",
}
READS = ("document", "xhr", "fetch")


def record_reads(page: Page) -> list[str]:
    """Return a list that gets the path of each request for a view, but not those for scripts, styles and icons."""
    reads: list[str] = []

    def record(request: Request) -> None:
        if request.resource_type in READS:
            reads.append(urlsplit(request.url).path)

    page.on("request", record)
    return reads


def find_path(system: System, name: str) -> str:
    # The page of a scheduled call refreshes itself as long as the call can change.
    return system.build_details_url(system.submit("read once", delay="1h")) if name == "call" else name


@pytest.mark.parametrize("name", LIVE_PAGES)
def test_a_page_is_one_request_and_each_refresh_is_another(page: Page, system: System, name: str) -> None:
    path = find_path(system, name)
    page.goto("/preferences/")
    reads = record_reads(page)
    page.goto(path)
    page.wait_for_load_state("networkidle")
    assert reads == [urlsplit(path).path]
    page.get_by_role("button", name="Pause").click()
    reads.clear()
    look_again(page, LIVE_PAGES[name])
    page.wait_for_load_state("networkidle")
    assert len(reads) == 1

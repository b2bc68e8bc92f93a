"""A page that cannot be updated says so, and how old it is, however the server fails; it recovers by itself."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Desk, look_again
from tests.browser.marks import BROWSER

pytestmark = BROWSER

POLLS = re.compile(r"/cluster/")
# Longer than the time after which a request is given up.
PATIENCE = 15_000


def fail_polls(page: Page, how: str) -> None:
    """Let the requests of live parts fail: the connection, the server, or a server that accepts and stays silent."""

    def handle(route: Route) -> None:
        if "hx-request" not in route.request.headers:
            route.continue_()
        elif how == "connection":
            route.abort()
        elif how == "error":
            route.fulfill(status=503, body="")

    page.route(POLLS, handle)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("connection", "The server cannot be reached."),
        ("error", "The server returned an error (503)."),
        ("silence", "The server does not respond."),
    ],
)
def test_a_page_that_cannot_be_updated_says_so_and_recovers(desk: Desk, how: str, text: str) -> None:
    page = desk.sit("oscar")
    desk.watch(page).expected += ["ERR_FAILED", "503", r"htmx:(afterRequest|sendError|timeout|responseError)"]
    page.goto("/cluster/")
    live, banner = page.locator(".live"), page.locator("#connection")
    expect(live).to_contain_text("Live")
    expect(live).to_contain_text(re.compile(r"updated (just now|\d+ s ago)"))
    expect(banner).to_be_hidden()
    fail_polls(page, how)
    look_again(page, "#cluster")
    expect(banner).to_contain_text(text, timeout=PATIENCE)
    expect(banner).to_contain_text(re.compile(r"Last updated \d+ s ago\."))
    expect(live).to_contain_text("Not updating")
    page.unroute(POLLS)
    # Without waiting until it can be clicked, since the page may recover before.
    banner.get_by_role("button", name="Try again", include_hidden=True).dispatch_event("click")
    expect(banner).to_be_hidden()
    expect(live).to_contain_text("Live")


def test_the_age_of_a_page_grows_while_it_is_paused(page: Page) -> None:
    page.goto("/cluster/")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".live")).to_contain_text("Paused")
    expect(page.locator(".live [data-updated]")).to_have_text("updated 2 s ago")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".live [data-updated]")).to_have_text("updated just now")

"""Fixtures: one system and one browser for all browser tests. A test fails if any page that it opened had an error."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright

from tests.browser.chromium import EXECUTABLE, FLAGS, WIDE
from tests.browser.page_errors import Watch
from tests.browser.system import PASSWORD, System, run_system

CALLS = 400
# In milliseconds: how long something may take to be seen.
PATIENCE = 8000

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="package")
def chromium() -> str:
    if not EXECUTABLE:
        missing = "no browser: install chromium, or name it in CHROMIUM"
        if os.environ.get("REQUIRE_SERVICES") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    return EXECUTABLE


@pytest.fixture(scope="package")
def system(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with run_system(tmp_path_factory.mktemp("system"), CALLS) as system:
        yield system


@pytest.fixture(scope="package")
def browser(chromium: str, system: System) -> Iterator[Browser]:
    """The browser is closed before the system stops: its open connections would delay that."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@dataclass
class Desk:
    """Opens pages for operators, each with a browser profile of their own, and watches all of them for errors."""

    browser: Browser
    system: System
    profiles: dict[str, BrowserContext]
    opened: list[Watch] = field(default_factory=list)

    def sit(self, name: str | None = "oscar", **options: Any) -> Page:
        """Open a page for a user who is signed in, or for nobody. With options it has a profile of its own."""
        if name is None:
            context = self._open_profile(**options)
        elif options:
            context = self._open_profile(storage_state=self._get_profile(name).storage_state(), **options)
        else:
            context = self._get_profile(name)
        page = context.new_page()
        self.opened.append(Watch(page, self.system.url))
        return page

    def watch(self, page: Page) -> Watch:
        (found,) = (watch for watch in self.opened if watch.page is page)
        return found

    def leave(self) -> None:
        for watch in self.opened:
            watch.page.close()
            if watch.page.context not in self.profiles.values():
                watch.page.context.close()

    def _get_profile(self, name: str) -> BrowserContext:
        """Return the profile of a user. It signs in once, since passwords are slow to check on purpose."""
        if name not in self.profiles:
            context = self._open_profile()
            page = context.new_page()
            sign_in(page, name)
            page.close()
            self.profiles[name] = context
        return self.profiles[name]

    def _open_profile(self, **options: Any) -> BrowserContext:
        options = {"viewport": WIDE, "base_url": self.system.url, "locale": "en-GB", **options}
        context = self.browser.new_context(**options)
        context.set_default_timeout(PATIENCE)
        return context


def sign_in(page: Page, name: str, password: str = PASSWORD) -> None:
    page.goto("/login/")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    expect(page).not_to_have_url(re.compile("/login/"))


def look_again(page: Page, part: str) -> None:
    """Refresh a live part of a page now. By itself it does so every few seconds."""
    page.evaluate("(part) => htmx.trigger(part, 'look')", part)


def confirm(form: Locator) -> None:
    """Confirm an action, and type the word that the form asks for, if any."""
    button = form.locator("button.primary")
    expect(button).to_be_visible()  # the button is the last element: once it is visible, the form is complete
    word = form.locator("input[name=word]")
    if word.count():
        word.fill(word.get_attribute("data-word") or "")
    button.click()


@pytest.fixture(scope="package")
def profiles() -> dict[str, BrowserContext]:
    return {}


@pytest.fixture
def desk(
    browser: Browser, system: System, profiles: dict[str, BrowserContext], request: Any
) -> Iterator[Desk]:
    desk = Desk(browser, system, profiles)
    yield desk
    troubles = [trouble for watch in desk.opened for trouble in watch.troubles]
    _keep_pictures(desk, request.node.name)
    desk.leave()
    assert not troubles, "\n".join(troubles)


def _keep_pictures(desk: Desk, test: str) -> None:
    """Save a screenshot of each page to the folder that BROWSER_PICTURES names, if any."""
    folder = os.environ.get("BROWSER_PICTURES")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for number, watch in enumerate(desk.opened):
            watch.page.screenshot(path=Path(folder) / f"{test[:80].replace('/', '_')}-{number}.png")


@pytest.fixture
def page(desk: Desk) -> Page:
    """A page of an operator who is signed in."""
    return desk.sit("oscar")

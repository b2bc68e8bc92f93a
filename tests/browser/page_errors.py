"""Watches pages for errors that no page may have."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import ConsoleMessage, Page, Request, Response

# Chromium tells of a violation in its console too, but not of each kind.
REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) => {
  console.error(`CSP violation: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile || ""}:${event.lineNumber}`);
});
"""
LOCAL_SCHEMES = {"data", "blob", "about"}


@dataclass
class Watch:
    """Collects the errors of a page. `expected` has patterns of errors that a test provokes."""

    page: Page
    origin: str
    expected: list[str] = field(default_factory=list)
    _troubles: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.add_init_script(REPORT_VIOLATIONS)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self._note(f"script error: {error}"))
        self.page.on("requestfailed", self._failed)
        self.page.on("request", self._request)
        self.page.on("response", self._response)

    @property
    def troubles(self) -> list[str]:
        return [
            trouble for trouble in self._troubles if not any(re.search(e, trouble) for e in self.expected)
        ]

    def _note(self, trouble: str) -> None:
        self._troubles.append(f"{urlsplit(self.page.url).path}: {trouble}")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") or "Content Security Policy" in message.text:
            self._note(f"console {message.type}: {message.text}")

    def _failed(self, request: Request) -> None:
        # A page that is left takes its requests with it.
        if request.failure != "net::ERR_ABORTED":
            self._note(f"failed: {request.method} {request.url} ({request.failure})")

    def _request(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme not in LOCAL_SCHEMES and f"{url.scheme}://{url.netloc}" != self.origin:
            self._note(f"another origin: {request.url}")

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self._note(f"answered {response.status}: {response.request.method} {response.url}")

"""The URLs of all pages of the console, from the URL configuration, with ids from the demo data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver
from playwright.sync_api import Page as BrowserPage

from eventservice.console.base.views import ConsoleView

# Files and fragments, which are no pages.
NO_PAGES = {
    "calls-csv", "calls-ndjson", "calls-suggestions", "call-request-body", "call-response-body", "sent-call",
}  # fmt: skip
ALONE = {"login"}


def list_routes() -> dict[str, str]:
    """Return the routes of all pages by name."""
    found = {
        str(pattern.name): route
        for route, pattern in _patterns(get_resolver().url_patterns, "/")
        if hasattr(pattern.callback.view_class, "get")  # type: ignore[attr-defined]
    }
    return {name: route for name, route in found.items() if name not in NO_PAGES}


def _patterns(patterns: Any, prefix: str) -> Iterator[tuple[str, URLPattern]]:
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            if pattern.namespace in (None, "console"):
                yield from _patterns(pattern.url_patterns, route)
        elif issubclass(getattr(pattern.callback, "view_class", object), ConsoleView):
            yield route, pattern


def fill_route(route: str, values: dict[str, str]) -> str:
    return re.sub(r"<(?:\w+:)?(\w+)>", lambda match: values[match[1]], route)


def find_examples(page: BrowserPage) -> dict[str, dict[str, str]]:
    """Return values for the parameters of routes, by the beginning of the route. Links on the pages have them."""
    call = _find_link(
        page,
        "/calls/?status=Failed",
        r"^/calls/(?P<tenant_id>[0-9a-f-]{36})/(?P<service_call_id>[0-9a-f-]{36})/$",
    )
    return {
        "/calls": call,
        "/traces": _find_link(page, fill_route("/calls/<tenant_id>/<service_call_id>/", call), r"^/traces/(?P<tenant_id>[0-9a-f-]{36})/(?P<correlation_id>[0-9a-f-]{36})/$"),
        "/scheduled": _find_link(page, "/calls/?status=Scheduled&sort=-dueAt", r"^/calls/(?P<tenant_id>[0-9a-f-]{36})/(?P<service_call_id>[0-9a-f-]{36})/$"),
        "/events": _find_link(page, "/events/?show=parked", r"^/events/(?P<key>\d+)/$"),
        "/tenants": _find_key(page),
    }  # fmt: skip


def _find_key(page: BrowserPage) -> dict[str, str]:
    tenant = _find_link(page, "/tenants/", r"^/tenants/(?P<tenant_id>[0-9a-f-]{36})/$")
    key = r"^/tenants/(?P<tenant_id>[0-9a-f-]{36})/keys/(?P<key_id>\w+)/rotate/$"
    return _find_link(page, fill_route("/tenants/<tenant_id>/", tenant), key)


def _find_link(page: BrowserPage, address: str, pattern: str) -> dict[str, str]:
    page.goto(address)
    hrefs = page.locator("main a[href]").evaluate_all("links => links.map((a) => a.getAttribute('href'))")
    for href in hrefs:
        match = re.match(pattern, href)
        if match:
            return match.groupdict()
    raise AssertionError(f"{address} links to nothing like {pattern}: {hrefs[:20]}")

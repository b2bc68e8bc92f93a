"""Every page of the console, from the URL map itself, each with what it takes of the made-up week."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver
from playwright.sync_api import Page as BrowserPage

from eventservice.console.base.views import ConsoleView

# Files, not pages; and the answers to what a form asks while it is filled in.
NO_PAGES = {"calls-csv", "calls-ndjson", "call-request-body", "call-response-body", "sent-call"}
ALONE = {"login"}


def routes() -> dict[str, str]:
    """By name: what can be looked at."""
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


def filled(route: str, values: dict[str, str]) -> str:
    return re.sub(r"<(?:\w+:)?(\w+)>", lambda match: values[match[1]], route)


def examples(page: BrowserPage) -> dict[str, dict[str, str]]:
    """What stands for the parameters of a route: by the route's first words, from the pages themselves."""
    return {
        "/calls": _matched(page, "/calls/?status=Failed", r"^/calls/(?P<tenant_id>[0-9a-f-]{36})/(?P<service_call_id>[0-9a-f-]{36})/$"),
        "/scheduled": _matched(page, "/calls/?status=Scheduled&sort=-dueAt", r"^/calls/(?P<tenant_id>[0-9a-f-]{36})/(?P<service_call_id>[0-9a-f-]{36})/$"),
        "/outbox": _matched(page, "/outbox/?show=parked", r"^/outbox/(?P<key>\d+)/$"),
        "/tenants": _key_of_a_tenant(page),
    }  # fmt: skip


def _key_of_a_tenant(page: BrowserPage) -> dict[str, str]:
    tenant = _matched(page, "/tenants/", r"^/tenants/(?P<tenant_id>[0-9a-f-]{36})/$")
    key = r"^/tenants/(?P<tenant_id>[0-9a-f-]{36})/keys/(?P<key_id>\w+)/rotate/$"
    return _matched(page, filled("/tenants/<tenant_id>/", tenant), key)


def _matched(page: BrowserPage, address: str, pattern: str) -> dict[str, str]:
    page.goto(address)
    hrefs = page.locator("main a[href]").evaluate_all("links => links.map((a) => a.getAttribute('href'))")
    for href in hrefs:
        match = re.match(pattern, href)
        if match:
            return match.groupdict()
    raise AssertionError(f"{address} links to nothing like {pattern}: {hrefs[:20]}")

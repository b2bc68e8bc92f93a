"""All endpoints, from the URL map itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from django.urls import URLPattern, URLResolver, get_resolver

METHODS = ("get", "post", "put", "patch", "delete")


class Endpoint(NamedTuple):
    method: str
    route: str  # api/v1/tenants/<uuid:tenant_id>/…

    def path(self, **values: Any) -> str:
        return "/" + re.sub(r"<(?:\w+:)?(\w+)>", lambda match: str(values[match[1]]), self.route)

    @property
    def names(self) -> set[str]:
        return set(re.findall(r"<(?:\w+:)?(\w+)>", self.route))

    def __str__(self) -> str:
        return f"{self.method} {self.route}"


def list_endpoints() -> list[Endpoint]:
    return [
        Endpoint(method.upper(), route)
        for route, view in _list_views(get_resolver().url_patterns, "")
        if route.startswith("api/v1/")
        for method in METHODS
        if hasattr(view, method)
    ]


def _list_views(patterns: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _list_views(pattern.url_patterns, route)
        elif isinstance(pattern, URLPattern):
            yield route, getattr(pattern.callback, "cls", None)

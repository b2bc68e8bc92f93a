"""Every request carries a correlation id: the caller's, when it is a UUIDv7, or a new one.

What is logged meanwhile carries it, and the tenant of the path.
"""

import uuid
from collections.abc import Callable
from typing import Any

import structlog
from django.http import HttpRequest, HttpResponse
from django.utils.log import log_response

from eventservice.kernel.ids import new_id

HEADER = "X-Correlation-Id"


class CorrelationMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        correlation_id = accepted(request.headers.get(HEADER)) or new_id()
        request.correlation_id = correlation_id  # type: ignore[attr-defined]
        structlog.contextvars.bind_contextvars(correlation_id=str(correlation_id))
        try:
            response = self.get_response(request)
            # Django would do it too, once this line and its correlation id are left.
            if response.status_code >= 400:
                log_response(
                    "%s: %s", response.reason_phrase, request.path, response=response, request=request
                )
        finally:
            structlog.contextvars.clear_contextvars()
        response[HEADER] = str(correlation_id)
        return response

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if "tenant_id" in kwargs:
            structlog.contextvars.bind_contextvars(tenant_id=str(kwargs["tenant_id"]))


def accepted(given: str | None) -> uuid.UUID | None:
    try:
        parsed = uuid.UUID(given or "")
    except ValueError:
        return None
    return parsed if parsed.version == 7 else None

"""Every request has a correlation id: the caller's, if it is a UUIDv7, or a new one.

Everything that is logged during the request carries it, and the tenant of the path.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import cast

import structlog
from django.http import HttpRequest, HttpResponse
from django.utils.log import log_response
from rest_framework.request import Request

from eventservice.kernel.ids import is_uuid7, new_id
from eventservice.operators.client_address import describe_client
from eventservice.tenants.keys import get_key_id

HEADER = "X-Correlation-Id"


class CorrelationMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        correlation_id = _parse_correlation_id(request.headers.get(HEADER)) or new_id()
        request.correlation_id = correlation_id  # type: ignore[attr-defined]
        structlog.contextvars.bind_contextvars(correlation_id=str(correlation_id))
        try:
            response = self.get_response(request)
            # Django would log it too, but after this line, when the correlation id is gone.
            if response.status_code >= 400:
                _log_refusal(request, response)
        finally:
            structlog.contextvars.clear_contextvars()
        response[HEADER] = str(correlation_id)
        return response

    def process_view(
        self, request: HttpRequest, view: object, args: object, kwargs: Mapping[str, object]
    ) -> None:
        if "tenant_id" in kwargs:
            structlog.contextvars.bind_contextvars(tenant_id=str(kwargs["tenant_id"]))


def _log_refusal(request: HttpRequest, response: HttpResponse) -> None:
    """Log an error response as Django would, with its status and the error code of its problem.

    If a key was refused, it is named by its id, with the address of the client.
    """
    refusal: dict[str, object] = {"status": response.status_code}
    if code := getattr(response, "problem_code", None):  # pages have none
        refusal["code"] = code
    if response.status_code == HTTPStatus.UNAUTHORIZED:
        refusal["client"] = describe_client(request)
        _, _, text = request.headers.get("Authorization", "").partition(" ")
        if key_id := get_key_id(text.strip()):
            refusal["key_id"] = key_id
    with structlog.contextvars.bound_contextvars(**refusal):
        log_response("%s: %s", response.reason_phrase, request.path, response=response, request=request)


def get_correlation_id(request: HttpRequest | Request) -> uuid.UUID:
    return cast("uuid.UUID", request.correlation_id)  # type: ignore[union-attr]


def _parse_correlation_id(text: str | None) -> uuid.UUID | None:
    try:
        parsed = uuid.UUID(text or "")
    except ValueError:
        return None
    return parsed if is_uuid7(parsed) else None

"""What every endpoint does before it does its own: who asks, may they, how often, and in which tenant."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.http import HttpResponse
from rest_framework.exceptions import NotAuthenticated
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request
from rest_framework.views import APIView

from eventservice.api.authentication import KeyAuthentication, Principal, Scope
from eventservice.api.problems import Problem
from eventservice.api.throttling import take_turn
from eventservice.db.bulk import to_json
from eventservice.kernel.errors import NotFound
from eventservice.tenants.directory import TenantProfile, get_profile

READING = frozenset({"GET", "HEAD", "OPTIONS"})
SESSION_READS = (
    "A session only reads here: use an API key, or the console, which notes what an operator does."
)


class OnlyJson(BaseContentNegotiation):
    """Whatever a client would rather have, this is what there is."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


class ApiView(APIView):
    authentication_classes = [KeyAuthentication]
    permission_classes = []
    content_negotiation_class = OnlyJson
    # What it takes beside `read` for reading and `write` for everything else.
    scope: Scope | None = None
    for_operators = False

    principal: Principal
    tenant: TenantProfile

    @property
    def rate_policy(self) -> str:
        return "tenant"

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if not request.user.is_authenticated:
            raise NotAuthenticated("Give an API key: Authorization: Bearer es_….")
        self.principal = request.user  # type: ignore[assignment]
        if "tenant_id" in kwargs:
            self._enter(kwargs["tenant_id"])
        self._require_scope(request.method or "")

    def _enter(self, tenant_id: uuid.UUID) -> None:
        """Another tenant and none at all are the same."""
        if self.principal.tenant_id not in (None, tenant_id):
            raise NotFound("tenant")
        self.tenant = get_profile(tenant_id)
        # Whoever can raise the rate is not stopped by it.
        if not self.principal.is_operator:
            self.rate = take_turn(self.tenant, self.rate_policy)

    def _require_scope(self, method: str) -> None:
        if self.for_operators and not self.principal.is_operator:
            raise Problem(403, "operators_only", "Only operators may ask this.")
        scope = self.scope or (Scope.READ if method in READING else Scope.WRITE)
        if scope not in self.principal.scopes:
            if self.principal.by_session:
                raise Problem(403, "session_reads_only", SESSION_READS)
            raise Problem(
                403, "scope_missing", f"This key has not the scope {scope.value!r} that this takes."
            )

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response.headers.setdefault("Cache-Control", "no-store")
        if rate := getattr(self, "rate", None):
            for name, value in rate.items():
                response[name] = value
        if response.status_code == 405:
            response["Allow"] = ", ".join(self.allowed_methods)
        return response

    def options(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return HttpResponse(status=204, headers={"Allow": ", ".join(self.allowed_methods)})

    @property
    def correlation_id(self) -> uuid.UUID:
        return self.request.correlation_id  # type: ignore[no-any-return, attr-defined]

    @property
    def most_bytes(self) -> int:
        return int(settings.API_MAX_REQUEST_BYTES)


def reply(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    return HttpResponse(to_json(data).encode(), "application/json", status, headers=headers)


def no_content() -> HttpResponse:
    return HttpResponse(status=204)

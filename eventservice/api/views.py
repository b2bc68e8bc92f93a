"""The base class of all endpoints. Views subclass ApiView, and describe themselves with openapi.describe."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NoReturn, TypeVar

from django.conf import settings
from django.http import HttpRequest
from rest_framework.generics import GenericAPIView
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from eventservice.api.authentication import ApiKeyAuthentication, Principal, Scope
from eventservice.api.correlation import get_correlation_id
from eventservice.api.pagination import CursorPagination
from eventservice.api.parsers import StrictJSONParser, check_body_headers, has_body
from eventservice.api.permissions import HasScope, IsAuthenticated, IsInOwnTenant
from eventservice.api.problems import FieldError, InvalidRequest, Problem
from eventservice.api.renderers import ModelRenderer
from eventservice.api.schema.base import RequestModel, parse
from eventservice.api.schema.queries import EmptyQuery, parse_query
from eventservice.api.throttling import TenantRateThrottle
from eventservice.tenants.directory import TenantProfile, get_profile
from eventservice.tenants.refusals import record_refusals

M = TypeVar("M", bound=RequestModel)

MAX_NO_BODY_BYTES = 1024


class IgnoreClientContentNegotiation(BaseContentNegotiation):
    """Selects JSON for requests and responses, whatever the client would prefer."""

    def select_parser(self, request: Request, parsers: Iterable[BaseParser]) -> BaseParser:
        return next(iter(parsers))

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        renderer = next(iter(renderers))
        return renderer, renderer.media_type


class ApiView(GenericAPIView[Any]):
    authentication_classes = [ApiKeyAuthentication]
    permission_classes: list[type[BasePermission]] = [IsAuthenticated, IsInOwnTenant, HasScope]
    throttle_classes = [TenantRateThrottle]
    pagination_class = CursorPagination
    parser_classes = [StrictJSONParser]
    renderer_classes = [ModelRenderer]
    content_negotiation_class = IgnoreClientContentNegotiation

    # Set by the throttle.
    rate_headers: Mapping[str, str] | None = None

    @property
    def principal(self) -> Principal:
        principal: Principal = self.request.user  # type: ignore[assignment]  # by IsAuthenticated
        return principal

    @property
    def may_read(self) -> bool:
        """Whether a response may show what was stored before. A key that may only write learns that its request worked."""
        return Scope.READ in self.principal.scopes

    @cached_property
    def tenant(self) -> TenantProfile:
        """The tenant of the path."""
        return get_profile(self.kwargs["tenant_id"])

    @property
    def correlation_id(self) -> uuid.UUID:
        return get_correlation_id(self.request)

    @property
    def rate_policy(self) -> str:
        """The name of the rate limit that counts this request."""
        return "tenant"

    @property
    def max_body_bytes(self) -> int:
        return int(settings.API_MAX_REQUEST_BYTES)

    @property
    def paginator(self) -> CursorPagination:
        paginator = super().paginator
        assert isinstance(paginator, CursorPagination)  # noqa: S101 (see pagination_class)
        return paginator

    def get_required_scope(self, method: str) -> Scope:
        return Scope.READ if method in SAFE_METHODS else Scope.WRITE

    # --- bodies -----------------------------------------------------------------------------------------------

    def get_document(self) -> object:
        """Return the JSON document of the body; raise Problem if there is none."""
        if not has_body(self.request) or not self.request.META.get("CONTENT_LENGTH"):
            check_body_headers(self.request.META, self.max_body_bytes)
            raise Problem(400, "malformed_json", "The body is empty: send a JSON document.")
        return self.request.data

    def parse_body(self, model: type[M], *, context: object = None) -> M:
        """Return the body as its model; raise Problem with all errors."""
        return parse(model, self.get_document(), context=context)

    def parse_optional_body(self, model: type[M]) -> M:
        """Return the body as its model. A request without a body is one with an empty object."""
        return self.parse_body(model) if has_body(self.request) else parse(model, {})

    def refuse_body(self) -> None:
        """Raise Problem if the request has a body. An empty object counts as none."""
        if not has_body(self.request):
            return
        check_body_headers(self.request.META, MAX_NO_BODY_BYTES)
        if self.request.data not in ({}, None):
            raise InvalidRequest([FieldError("", "must be empty: this endpoint takes no body")])

    # --- what APIView does with each request -----------------------------------------------------------------

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        """Prepare like APIView, but throttle first: requests that are not permitted count against the rate limit."""
        self.format_kwarg = None
        request.accepted_renderer, request.accepted_media_type = self.perform_content_negotiation(request)
        self.perform_authentication(request)
        self.check_throttles(request)
        self.check_permissions(request)
        self.refuse_unknown_query(request)

    def refuse_unknown_query(self, request: Request) -> None:
        """Raise Problem if there are parameters and the method has none. A method that has some parses them itself."""
        handler = getattr(self, (request.method or "").lower(), None)
        if handler is not None and not getattr(handler, "has_query", True):
            parse_query(EmptyQuery, request.query_params)

    def throttled(self, request: Request, wait: float | None) -> NoReturn:
        rate = get_profile(self.principal.tenant_id).requests_per_minute  # type: ignore[arg-type]
        detail = f"This tenant is limited to {rate} requests per minute."
        raise Problem(429, "too_many_requests", detail, headers={"Retry-After": f"{wait:.0f}"})

    def finalize_response(
        self, request: Request, response: Response, *args: object, **kwargs: object
    ) -> Response:
        response = super().finalize_response(request, response, *args, **kwargs)
        response.headers.setdefault("Cache-Control", "no-store")
        for name, value in (self.rate_headers or {}).items():
            response[name] = value
        if response.status_code == 405:
            response["Allow"] = ", ".join(self.allowed_methods)
        record_refusals()
        return response

    @property
    def default_response_headers(self) -> dict[str, str]:
        return {}

    def options(self, request: HttpRequest, *args: object, **kwargs: object) -> Response:
        return Response(status=204, headers={"Allow": ", ".join(self.allowed_methods)})


def build_no_content() -> Response:
    return Response(status=204)

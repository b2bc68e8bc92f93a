"""Every endpoint of the API is a view of Django REST framework, built of the framework's parts."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import URLPattern
from rest_framework import authentication, pagination, parsers, permissions, renderers, throttling
from rest_framework.generics import GenericAPIView
from rest_framework.settings import api_settings

from eventservice.api.permissions import HasScope, IsAuthenticated
from eventservice.api.problems import handle_exception
from eventservice.api.urls import urlpatterns
from eventservice.api.views import ApiView

# The document and its page describe the API: they are no part of it.
DESCRIPTION = {"openapi", "docs"}
ENDPOINTS: list[URLPattern] = [pattern for pattern in urlpatterns if pattern.name not in DESCRIPTION]
PARTS: dict[str, type] = {
    "authentication_classes": authentication.BaseAuthentication,
    "permission_classes": permissions.BasePermission,
    "throttle_classes": throttling.BaseThrottle,
    "parser_classes": parsers.BaseParser,
    "renderer_classes": renderers.BaseRenderer,
}


def get_route(endpoint: URLPattern) -> str:
    return str(endpoint.pattern)


def get_view(endpoint: URLPattern) -> Any:
    callback: Any = endpoint.callback
    return callback.view_class


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=get_route)
def test_an_endpoint_is_built_of_the_frameworks_parts(endpoint: URLPattern) -> None:
    view = get_view(endpoint)
    assert issubclass(view, ApiView)
    assert issubclass(view, GenericAPIView)
    for name, base in PARTS.items():
        classes = getattr(view, name)
        assert classes, name
        assert all(issubclass(one, base) for one in classes), name
    assert issubclass(view.pagination_class, pagination.BasePagination)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=get_route)
def test_an_endpoint_demands_a_principal_and_a_scope_and_is_throttled(endpoint: URLPattern) -> None:
    view = get_view(endpoint)
    assert view.authentication_classes == ApiView.authentication_classes
    assert view.throttle_classes == ApiView.throttle_classes
    assert {IsAuthenticated, HasScope} <= set(view.permission_classes)


def test_the_framework_reports_errors_as_problems() -> None:
    assert api_settings.EXCEPTION_HANDLER is handle_exception

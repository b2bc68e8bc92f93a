"""The server refuses every POST of a viewer, on every page of the URL configuration, and nothing changes."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from eventservice.operators.models import OperatorAction
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import ApiKey, Tenant
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.lifecycle import submit
from orchestration.models import ServiceCall, ServiceCallTag
from outbox.models import OutboxEvent
from tests.api.endpoints import list_endpoints
from timers.models import TimerSchedule

pytestmark = pytest.mark.sqlite_only  # the role is checked before the database is used

# These change nothing: the parameters of one are too long for a URL, and the other sets a cookie.
ASKED_BY_POST = {"calls-look", "preferences"}
STORED = (ServiceCall, ServiceCallTag, TimerSchedule, OutboxEvent)


def list_console_patterns(patterns: Any = None, prefix: str = "/") -> Iterator[tuple[str, URLPattern]]:
    for pattern in get_resolver().url_patterns if patterns is None else patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            if pattern.namespace in (None, "console"):
                yield from list_console_patterns(pattern.url_patterns, route)
        elif issubclass(getattr(pattern.callback, "view_class", object), _get_page_class()):
            yield route, pattern


def _get_page_class() -> type:
    from eventservice.console.base.views import ConsoleView

    return ConsoleView


POSTED = {
    str(pattern.name): (route, pattern)
    for route, pattern in list_console_patterns()
    if hasattr(pattern.callback.view_class, "post")  # type: ignore[attr-defined]
}


@pytest.fixture
def call(db: None) -> SubmitServiceCall:
    command = SubmitServiceCall(
        create_tenant("acme").tenant_id,
        "greet",
        RequestSpec("POST", "http://target.test/"),
        tags=frozenset("t"),
    )
    submit([command])
    return command


def build_address(route: str, pattern: URLPattern, call: SubmitServiceCall) -> str:
    """Return the URL with the ids of a call that exists, so that only the role can be the reason for a refusal."""
    values = {"tenant_id": call.tenant_id, "service_call_id": call.service_call_id}
    others = {"uuid": uuid.uuid4(), "int": 1}
    return re.sub(
        r"<(?:(\w+):)?(\w+)>", lambda part: str(values.get(part[2]) or others.get(part[1], "x")), route
    )


def read_all_rows() -> list[Any]:
    rows = [list(model.across_tenants.order_by("pk").values()) for model in STORED]
    return [*rows, list(Tenant.objects.values()), list(ApiKey.across_tenants.values())]


@pytest.mark.parametrize("name", sorted(POSTED))
def test_a_viewer_is_refused_every_post(name: str, viewer: Client, call: SubmitServiceCall) -> None:
    before = read_all_rows()
    path = build_address(*POSTED[name], call)
    for headers in ({}, {"HX-Request": "true"}):
        response = viewer.post(path, {"confirm": "yes", "word": "yes"}, headers=headers)
        assert response.status_code == 403 or name in ASKED_BY_POST, path
    assert read_all_rows() == before
    assert not OperatorAction.across_tenants.exists()


@pytest.mark.parametrize("name", sorted(POSTED))
def test_an_anonymous_post_is_redirected_to_the_login(name: str, call: SubmitServiceCall) -> None:
    response = Client().post(build_address(*POSTED[name], call))
    assert (response.status_code, response["Location"][:7]) == (302, "/login/")


# What reads although it is a POST, for its parameters, is for viewers too.
WRITING = [e for e in list_endpoints() if e.method != "GET" and not e.route.endswith("timers/get")]


@pytest.mark.parametrize("endpoint", WRITING, ids=str)
def test_the_api_refuses_the_session_of_a_viewer_too(
    endpoint: Any, viewer: Client, call: SubmitServiceCall
) -> None:
    before = read_all_rows()
    ids = {"tenant_id": call.tenant_id, "service_call_id": call.service_call_id}
    path = endpoint.path(**{name: ids.get(name, "x") for name in endpoint.names})
    response = viewer.generic(endpoint.method, path, b"{}", "application/json")
    assert response.status_code == 403, response.content
    assert read_all_rows() == before


def test_the_url_configuration_has_pages_that_accept_a_post() -> None:
    assert {"call-cancel", "new-call"} <= set(POSTED)
    assert len(WRITING) > 10

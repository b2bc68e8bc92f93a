"""Below the form is the response, which refreshes until the call has ended, also without JavaScript."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest
from django.test import Client

from eventservice.console.calls import details_page, request_page
from eventservice.db.now import pin_time
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant
from execution.outcome import ErrorKind
from orchestration import lifecycle
from orchestration.queries.calls import get_call
from orchestration.retries import RetryPolicy
from tests.console.call_pages import NEW, build_call_url, read_text
from tests.orchestration.support import ManualEngine, add_to_noon, build_error, build_response, submit

pytestmark = pytest.mark.django_db
HTMX = {"HX-Request": "true"}


@pytest.fixture
def acme(db: None) -> Tenant:
    return create_tenant("acme")


def get_response(client: Client, tenant: Tenant, service_call_id: Any) -> Any:
    address = build_call_url(tenant.tenant_id, service_call_id, "sent-call")
    return client.get(address, headers=HTMX)


def read_refresh_seconds(page: Any) -> int:
    found = re.search(r'id="response"[^>]* data-live="(\d+)"', page.content.decode())
    return int(found[1]) if found else 0


def test_the_response_refreshes_every_second_until_the_call_has_ended(
    operator: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = submit(acme)
    waiting = get_response(operator, acme, call)
    assert read_refresh_seconds(waiting) == 1
    assert "waiting for an engine" in read_text(waiting)
    started = manual_engine.start_one()
    assert "Attempt 1 is running" in read_text(get_response(operator, acme, call))
    manual_engine.finish(
        (
            started,
            build_response(started, 200, b'{"ok":true,"n":[1]}', {"X-Answer": "yes", "Set-Cookie": "s3cret"}),
        )
    )
    ended = get_response(operator, acme, call)
    text = read_text(ended)
    assert read_refresh_seconds(ended) == 0
    for expected in ("Succeeded", "200 OK", "12 ms", "19 B", "X-Answer yes", "Set-Cookie ••••••"):
        assert expected in text, expected
    assert "{\n  &quot;ok&quot;: true,\n  &quot;n&quot;: [\n    1\n  ]\n}" in ended.content.decode()


def test_only_the_whole_page_has_the_form(
    operator: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = submit(acme)
    assert 'id="request-form"' not in get_response(operator, acme, call).content.decode()
    page = operator.get(f"{NEW}?sent={acme.tenant_id}/{call}").content.decode()
    assert 'id="request-form"' in page
    # A link to the current URL would only scroll to the response.
    (refresh,) = re.findall(r'href="([^"]+)">Refresh</a>', page)
    assert refresh.startswith(f"{NEW}?sent={acme.tenant_id}/{call}&amp;at=")
    assert refresh.endswith("#response")
    assert build_call_url(acme.tenant_id, call) in page


def test_a_scheduled_call_counts_down_and_refreshes_less_often(
    operator: Client, acme: Tenant, at_noon: datetime
) -> None:
    call = submit(acme, due_at=add_to_noon(7800))
    page = get_response(operator, acme, call)
    assert "Due in 2 h 10 m , at 2026-03-01 14:10:00 UTC" in read_text(page)
    assert 'datetime="2026-03-01T14:10:00.000+00:00"' in page.content.decode()
    assert read_refresh_seconds(page) == 60
    with pin_time(add_to_noon(7795)):
        assert read_refresh_seconds(get_response(operator, acme, call)) == 1


def test_errors_are_explained_with_the_attempts_so_far(
    operator: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = submit(acme, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0))
    first = manual_engine.start_one()
    manual_engine.finish((first, build_error(first, ErrorKind.DNS)))
    text = read_text(get_response(operator, acme, call))
    assert (
        "Attempt 1 failed: The host name could not be resolved. The next attempt (2 of 2) is due now" in text
    )
    assert "The host name could not be resolved. It did not work." in text
    second = manual_engine.start_one()
    manual_engine.finish((second, build_response(second, 503)))
    text = read_text(get_response(operator, acme, call))
    assert "Failed now . The target answered with status 503. All 2 attempts were made." in text
    assert "Attempts so far" in text
    assert "503 Service Unavailable" in text


def test_a_call_that_no_engine_starts_leads_to_the_nodes(
    operator: Client, acme: Tenant, at_noon: datetime
) -> None:
    call = submit(acme)
    with pin_time(add_to_noon(30)):
        assert "check Cluster" in read_text(get_response(operator, acme, call))


def test_a_response_is_escaped(operator: Client, acme: Tenant, manual_engine: ManualEngine) -> None:
    call = submit(acme)
    started = manual_engine.start_one()
    manual_engine.finish(
        (started, build_response(started, 200, b"<script>alert(1)</script>", {"X-<b>": "<img src=x>"}))
    )
    page = get_response(operator, acme, call).content.decode()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page


def test_the_raw_view_is_the_response_as_received(
    operator: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = submit(acme)
    started = manual_engine.start_one()
    manual_engine.finish((started, build_response(started, 200, b'{"a":1.10}')))
    page = operator.get(f"{NEW}?sent={acme.tenant_id}/{call}&view=text").content.decode()
    assert "{&quot;a&quot;:1.10}" in page


def test_a_deleted_call_is_reported(operator: Client, acme: Tenant, at_noon: datetime) -> None:
    call = submit(acme, due_at=add_to_noon(60))
    lifecycle.delete(acme.tenant_id, call)
    assert "has been deleted" in read_text(operator.get(f"{NEW}?sent={acme.tenant_id}/{call}"))
    assert get_response(operator, acme, call).status_code == 404


@pytest.mark.parametrize(("name", "module"), [("call", details_page), ("sent-call", request_page)])
def test_a_call_that_ends_while_its_page_is_read_is_not_shown_as_running(
    operator: Client,
    acme: Tenant,
    manual_engine: ManualEngine,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    module: Any,
) -> None:
    call = submit(acme)
    started = manual_engine.start_one()

    def get_call_before_it_ends(*key: Any) -> Any:
        found = get_call(*key)
        manual_engine.finish((started, build_response(started, 200, b"{}", {})))
        return found

    monkeypatch.setattr(module, "get_call", get_call_before_it_ends)
    page = operator.get(build_call_url(acme.tenant_id, call, name))
    assert "200 OK" in read_text(page)
    assert "is running" not in read_text(page)
    assert 'class="pill succeeded"' in page.content.decode()

"""A row shows the state of its call, and offers actions to those who may take them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from eventservice.tenants.models import Tenant
from tests.console.call_list import get_list_page, make_call, read_names
from tests.factories import NOON

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


def test_the_calls_of_all_tenants_are_listed_newest_first(
    viewer: Client, tenant: Tenant, intruder: Tenant
) -> None:
    for minutes, owner, name in ((-3, tenant, "a"), (-1, intruder, "b"), (-2, tenant, "c")):
        make_call(owner, minutes, name=name)
    page = get_list_page(viewer)
    assert read_names(page) == ["b", "c", "a"]
    assert "acme · POST example.test" in page
    assert read_names(get_list_page(viewer, f"tenant={tenant.tenant_id}")) == ["c", "a"]


def test_a_row_links_to_its_call_and_its_id_can_be_copied(viewer: Client, tenant: Tenant) -> None:
    call = make_call(tenant)
    page = get_list_page(viewer)
    assert f'href="/calls/{tenant.tenant_id}/{call.service_call_id}/" aria-label="Details of call"' in page
    assert f'data-copy="{call.service_call_id}"' in page


def test_a_replayed_call_is_marked(viewer: Client, tenant: Tenant) -> None:
    call = make_call(tenant, status="Failed", name="a")
    assert "replayed" not in get_list_page(viewer)
    make_call(tenant, status="Scheduled", name="b", replay_of=call.service_call_id)
    page = get_list_page(viewer)
    assert page.count(">replayed<") == 1
    assert read_names(get_list_page(viewer, f"replayOf={call.service_call_id}")) == ["b"]


@pytest.mark.parametrize(
    ("status", "columns", "texts"),
    [
        ("Scheduled", {"due_at": NOON + timedelta(hours=2)}, ["Due", "in 2 h"]),
        ("Scheduled", {"due_at": NOON - timedelta(minutes=2)}, ["2 m ago", "overdue"]),
        ("Running", {"started_at": NOON - timedelta(seconds=5), "cancel_requested": True}, ["Started", "5 s ago", "cancel requested"]),
        (
            "Succeeded",
            {
                "due_at": NOON - timedelta(minutes=9),
                "started_at": NOON - timedelta(minutes=8),
                "finished_at": NOON - timedelta(minutes=8),
                "attempt": 1,
                "outcome_meta": {"responseMeta": {"status": 200, "latencyMs": 45.2}},
            },
            ["Finished", "8 m ago", "45 ms", "1 m late"],
        ),
        ("Failed", {"outcome_meta": {"errorMeta": {"kind": "Timeout"}}, "attempt": 4}, ["Timed out", "4 attempts"]),
        ("Failed", {"outcome_meta": {"responseMeta": {"status": 503}, "errorMeta": {"kind": "HttpStatus"}}}, ["HTTP 503"]),
    ],
)  # fmt: skip
def test_a_row_shows_the_state_of_its_call(
    viewer: Client, tenant: Tenant, status: str, columns: dict[str, Any], texts: list[str]
) -> None:
    make_call(tenant, status=status, **columns)
    page = get_list_page(viewer)
    assert f'<span class="pill {status.lower()}">{status}</span>' in page
    text = re.sub(r"<[^>]+>", " ", page[page.index("<tbody>") :])
    assert [part for part in texts if part not in text] == []


def test_a_call_between_two_attempts_shows_as_retrying_with_its_last_error(
    viewer: Client, tenant: Tenant
) -> None:
    columns: dict[str, Any] = {
        "due_at": NOON + timedelta(minutes=5),
        "attempt": 2,
        "retry_policy": {"max_attempts": 5},
        "outcome_meta": {"errorMeta": {"kind": "Dns", "message": "x.test has no address."}},
    }
    make_call(tenant, **columns)
    page = get_list_page(viewer, "status=Scheduled")  # the stored status stays
    assert '<span class="pill retrying">Retrying</span>' in page
    assert 'title="x.test has no address.">DNS lookup failed<' in page
    assert "Attempt 3 of 5 <time" in page
    assert "in 5 m" in page


@pytest.mark.parametrize("interruptions", [0, 1])
def test_an_attempt_beyond_the_retry_policy_is_counted_without_a_limit(
    viewer: Client, tenant: Tenant, interruptions: int
) -> None:
    """A callback may ask for another attempt (nextExecuteAt), and an interrupted attempt is repeated."""
    make_call(tenant, attempt=1, interruptions=interruptions)
    assert "Attempt 2 <time" in get_list_page(viewer)


def test_a_running_attempt_beyond_the_retry_policy_is_counted_without_a_limit(
    viewer: Client, tenant: Tenant
) -> None:
    make_call(tenant, status="Running", attempt=3, retry_policy={"max_attempts": 2}, started_at=NOON)
    page = get_list_page(viewer)
    assert "attempt 3" in page
    assert "attempt 3 of" not in page


def test_a_row_shows_the_time_in_short(viewer: Client, tenant: Tenant) -> None:
    make_call(tenant, due_at=NOON + timedelta(days=1))
    assert re.search(
        r'class="clock nowrap" title="2026-03-02 12:00:00.000 UTC">Mar 2, 12:00<', get_list_page(viewer)
    )


def test_values_are_escaped(viewer: Client, tenant: Tenant) -> None:
    make_call(tenant, name="<script>alert(1)</script>", host="<b>.test", tags=('"><i>',))
    page = get_list_page(viewer)
    assert read_names(page) == ["<script>alert(1)</script>"]
    for raw in ("<script>alert", "<b>.test", '"><i>'):
        assert raw not in page


def test_a_list_has_no_headers_and_bodies(viewer: Client, tenant: Tenant) -> None:
    spec = {"method": "POST", "url": "http://x.test/", "headers": {"X-Key": "canary"}, "body": "canary"}
    make_call(tenant, request_spec=spec)
    assert "canary" not in get_list_page(viewer)


def test_a_favorite_has_a_star_and_is_not_shown_as_a_tag(
    viewer: Client, operator: Client, tenant: Tenant
) -> None:
    make_call(tenant, 1, name="dear", tags=("favorite", "x"))
    make_call(tenant, 2, name="other")
    page = get_list_page(operator)
    assert re.findall(r'aria-label="Favorite"\s+aria-pressed="(\w+)"', page) == ["false", "true"]
    assert '<span class="tag" title="favorite">' not in page
    assert read_names(get_list_page(viewer, "favorites=1")) == ["dear"]


def test_an_operator_toggles_a_favorite(operator: Client, tenant: Tenant) -> None:
    call = make_call(tenant)
    path = f"/calls/{tenant.tenant_id}/{call.service_call_id}/favorite/"
    star = operator.post(path, {"on": "1"}, HTTP_HX_REQUEST="true").content.decode()
    assert 'aria-pressed="true"' in star
    assert 'name="on" value="0"' in star
    assert "<html" not in star


def test_a_viewer_sees_everything_and_is_offered_no_actions(viewer: Client, tenant: Tenant) -> None:
    make_call(tenant, tags=("favorite",))
    page = get_list_page(viewer)
    assert 'title="Favorite"' in page
    for offered in ('name="call"', 'id="bulk"', "/favorite/", "/calls/new/"):
        assert offered not in page


def test_long_values_are_complete_in_their_titles(viewer: Client, tenant: Tenant) -> None:
    name, host = "n" * 200, "h" * 60 + ".test"
    spec: dict[str, Any] = {"method": "GET", "url": f"http://{host}/", "headers": {}, "body": None}
    make_call(tenant, name=name, host=host, request_spec=spec, tags=("a", "b", "c", "d", "e"))
    page = get_list_page(viewer)
    assert f'title="{name}"' in page
    assert f'title="GET http://{host}/"' in page
    assert 'title="d, e">+2' in page

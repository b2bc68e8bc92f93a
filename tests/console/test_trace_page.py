"""The page of a trace shows calls, timers, attempts and events of one correlation id of one tenant, on one time line."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.test import Client

from eventservice.console.calls import trace_page
from eventservice.console.calls.presenters.trace import format_span
from eventservice.db.now import pin_time
from eventservice.kernel.ids import new_id
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant
from execution.outcome import ErrorKind
from orchestration import lifecycle
from orchestration.commands import RequestSpec
from orchestration.queries import traces
from orchestration.retries import RetryPolicy
from outbox.models import OutboxEvent, WebhookDelivery
from outbox.publishers.webhook.endpoints import create_endpoint
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.console.call_list import make_call
from tests.console.call_pages import BROWSER, CANARY, build_call_url, read_text
from tests.orchestration.support import (
    URL,
    ManualEngine,
    add_to_noon,
    build_command,
    build_error,
    build_response,
    list_events,
    submit,
)
from tests.outbox.support import build_dispatcher, drain

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

CORRELATION = uuid.UUID("01900000-0000-7000-8000-00000000abcd")
RETRIES = RetryPolicy(max_attempts=3, initial_interval=0)


@pytest.fixture
def tenant(db: None) -> Tenant:
    """Override the fixture by a tenant with a namespace, which can submit calls."""
    return create_tenant("acme")


@pytest.fixture
def intruder(db: None) -> Tenant:
    return create_tenant("intruder")


def build_trace_url(tenant: Tenant, correlation_id: uuid.UUID = CORRELATION) -> str:
    return f"/traces/{tenant.tenant_id}/{correlation_id}/"


def get_page(client: Client, tenant: Tenant, status: int = 200, **query: str) -> Any:
    response = client.get(build_trace_url(tenant), query, headers=BROWSER)
    assert response.status_code == status, read_text(response)[:2000]
    return response


def submit_traced(tenant: Tenant, name: str = "call", **given: Any) -> uuid.UUID:
    return submit(tenant, name=name, correlation_id=CORRELATION, **given)


def list_steps(page: Any, row: int = 0) -> list[tuple[str, str, str]]:
    """Return the name, the text and the tone of each step of a call."""
    return [(step.name, step.text, step.tone) for step in page.context["rows"][row].steps]


def list_bars(page: Any, row: int = 0) -> list[tuple[str, float, float]]:
    """Return the kind of each bar of a call, and where it begins and ends."""
    bars = page.context["rows"][row].bars
    edges = [(bar.kind, float(bar.x.rstrip("%")), float(bar.width.rstrip("%"))) for bar in bars]
    return [(kind, x, round(x + width, 1)) for kind, x, width in edges]


@pytest.fixture
def retried(tenant: Tenant, manual_engine: ManualEngine) -> uuid.UUID:
    """A call that times out after ten seconds, fails again, and succeeds after a hundred."""
    call = submit_traced(tenant, "flaky", retry_policy=RETRIES)
    started = manual_engine.start_one()
    with pin_time(add_to_noon(10)):
        manual_engine.finish((started, build_error(started, ErrorKind.TIMEOUT)))
    with pin_time(add_to_noon(60)):
        started = manual_engine.start_one()
        manual_engine.finish((started, build_response(started, 503)))
    with pin_time(add_to_noon(90)):
        started = manual_engine.start_one()
    with pin_time(add_to_noon(100)):
        manual_engine.finish((started, build_response(started)))
    return call


# --- what it shows ------------------------------------------------------------------------------------------------


def test_the_header_has_the_id_to_copy_the_span_and_the_counts(
    viewer: Client, tenant: Tenant, retried: uuid.UUID
) -> None:
    with pin_time(add_to_noon(20)):
        lifecycle.cancel(tenant.tenant_id, submit_traced(tenant, delay=timedelta(hours=1)))
    with pin_time(add_to_noon(160)):
        page = get_page(viewer, tenant)
    text, source = read_text(page), page.content.decode()
    assert f'data-copy="{CORRELATION}"' in source
    assert "Submitted 2 m ago , ended 1 m ago after 1 m 40 s." in text
    assert "All calls 2 Succeeded 1 Canceled 1" in text
    assert f"/calls/?tenant={tenant.tenant_id}&amp;correlationId={CORRELATION}&amp;status=Succeeded" in source
    assert "Calls of acme" in text


def test_the_steps_of_a_call_are_in_order(viewer: Client, tenant: Tenant, retried: uuid.UUID) -> None:
    page = get_page(viewer, tenant)
    assert [step for step in list_steps(page) if not step[0].startswith("Timer")] == [
        ("ServiceCallSubmitted", "event 1", ""),
        ("ServiceCallScheduled", "event 2", ""),
        ("DueTimeReached", "event 3", ""),
        ("ServiceCallRunning", "event 4", ""),
        ("Attempt 1", "Timed out in 5.0 ms", "bad"),
        ("ServiceCallRescheduled", "event 5", ""),
        ("DueTimeReached", "event 6", ""),
        ("ServiceCallRunning", "event 7", ""),
        ("Attempt 2", "HTTP 503 in 12 ms", "bad"),
        ("ServiceCallRescheduled", "event 8", ""),
        ("DueTimeReached", "event 9", ""),
        ("ServiceCallRunning", "event 10", ""),
        ("Attempt 3", "HTTP 200 in 12 ms", "good"),
        ("ServiceCallSucceeded", "event 11", ""),
    ]
    source = page.content.decode()
    assert f"{build_call_url(tenant.tenant_id, retried)}?tab=response&amp;attempt=" in source
    assert "caused by event 1, ServiceCallSubmitted" in read_text(page)


def test_the_bars_show_when_a_call_waited_and_was_attempted(
    viewer: Client, tenant: Tenant, retried: uuid.UUID
) -> None:
    page = get_page(viewer, tenant)
    assert list_bars(page) == [
        ("failed", 0.0, 10.0),
        ("waiting", 10.0, 60.0),
        ("failed", 60.0, 60.6),
        ("waiting", 60.0, 90.0),
        ("succeeded", 90.0, 100.0),
    ]
    summary = (
        "Attempt 1 Timed out in 5.0 ms, waited 50 s, attempt 2 HTTP 503 in 12 ms, waited 30 s, attempt 3"
    )
    assert f'aria-label="{summary}' in page.content.decode()
    assert [text for _, text, _ in page.context["axis"].ticks] == [
        "0",
        "25 s",
        "50 s",
        "1 m 15 s",
        "1 m 40 s",
    ]


def test_all_calls_share_one_axis(viewer: Client, tenant: Tenant, manual_engine: ManualEngine) -> None:
    submit_traced(tenant, "first")
    started = manual_engine.start_one()
    with pin_time(add_to_noon(25)):
        manual_engine.finish((started, build_response(started)))
        submit_traced(tenant, "second", delay=timedelta(hours=1))
    with pin_time(add_to_noon(100)):
        page = get_page(viewer, tenant)
    assert [row.call.name for row in page.context["rows"]] == ["first", "second"]
    assert list_bars(page) == [("succeeded", 0.0, 25.0)]
    assert list_bars(page, 1) == [("waiting", 25.0, 100.0)]
    assert page.context["rows"][1].due_x == ""
    assert "due in 58 m" in read_text(page)


def test_a_pending_timer_is_a_step_to_come(viewer: Client, tenant: Tenant) -> None:
    submit_traced(tenant, delay=timedelta(hours=1))
    page = get_page(viewer, tenant, show="timers")
    assert list_steps(page) == [("Timer set", "due 1 h later", ""), ("Timer due", "", "waiting")]
    assert "in 1 h" in read_text(page)


def test_a_timer_that_was_reached_late_says_so(
    viewer: Client, tenant: Tenant, manual_engine: ManualEngine
) -> None:
    submit_traced(tenant, delay=timedelta(seconds=10))
    with pin_time(add_to_noon(30)):
        manual_engine.start_one()
        page = get_page(viewer, tenant, show="timers")
    assert list_steps(page)[1] == ("Timer reached", "20 s after the due time", "warn")


def test_a_running_attempt_reaches_to_the_end_of_the_time_line(
    viewer: Client, tenant: Tenant, manual_engine: ManualEngine
) -> None:
    submit_traced(tenant)
    with pin_time(add_to_noon(5)):
        manual_engine.start_one()
    with pin_time(add_to_noon(10)):
        page = get_page(viewer, tenant)
    assert list_bars(page) == [("waiting", 0.0, 50.0), ("running", 50.0, 100.0)]
    assert ("Attempt 1", "is running", "info") in list_steps(page)


def test_a_trace_of_one_instant_has_a_time_line_too(
    viewer: Client, tenant: Tenant, manual_engine: ManualEngine
) -> None:
    submit_traced(tenant)
    started = manual_engine.start_one()
    manual_engine.finish((started, build_response(started)))
    ((kind, begin, end),) = list_bars(get_page(viewer, tenant))
    assert (kind, begin) == ("succeeded", 0.0)
    assert 0 < end <= 100


def test_events_say_whether_they_are_published(viewer: Client, tenant: Tenant) -> None:
    call = submit_traced(tenant, delay=timedelta(hours=1))
    with pin_time(add_to_noon(2)):
        drain(build_dispatcher())
    with pin_time(add_to_noon(3)):
        lifecycle.reschedule(tenant.tenant_id, call, add_to_noon(7200))
        page = get_page(viewer, tenant, show="events")
    assert [step.note for step in page.context["rows"][0].steps] == [
        "published after 2.0 s", "published after 2.0 s", "not published yet",
    ]  # fmt: skip
    key = list_events(tenant, call)[0].id
    assert f'href="/events/{key}/"' in page.content.decode()


def test_a_parked_event_stands_out(viewer: Client, tenant: Tenant) -> None:
    call = submit_traced(tenant, delay=timedelta(hours=1))
    events = OutboxEvent.objects.for_tenant(tenant.tenant_id).filter(aggregate_id=call)
    events.filter(aggregate_seq=1).update(parked_at=add_to_noon(1), attempts=5)
    page = get_page(viewer, tenant, show="events")
    assert list_steps(page)[0] == ("ServiceCallSubmitted", "event 1", "bad")
    assert "not published: parked" in read_text(page)


def test_replays_and_origins_are_linked(viewer: Client, tenant: Tenant, retried: uuid.UUID) -> None:
    other = new_id()
    replay = lifecycle.replay(tenant.tenant_id, retried, other).service_call_id
    page = get_page(viewer, tenant)
    assert f'href="{build_trace_url(tenant, other)}"' in page.content.decode()
    assert ("Replayed", "the replay is Scheduled", "info") in list_steps(page)
    theirs = viewer.get(build_trace_url(tenant, other), headers=BROWSER)
    assert [row.call.service_call_id for row in theirs.context["rows"]] == [replay]
    assert f'href="{build_call_url(tenant.tenant_id, retried)}"' in theirs.content.decode()


def test_a_durable_timer_is_linked(viewer: Client, tenant: Tenant) -> None:
    make_call(tenant, correlation_id=CORRELATION, external_id="order/42 a&b")
    page = get_page(viewer, tenant).content.decode()
    assert "id=order%2F42+a%26b" in unescape(page)
    assert "Timer order/42 a&amp;b" in page


@pytest.mark.parametrize(
    ("show", "kinds"),
    [
        ("calls", set()),
        ("timers", {"timers"}),
        ("attempts", {"attempts"}),
        ("events", {"events"}),
        ("all", {"timers", "attempts", "events"}),
    ],
)
def test_one_kind_of_steps_can_be_chosen(
    viewer: Client, tenant: Tenant, retried: uuid.UUID, show: str, kinds: set[str]
) -> None:
    page = get_page(viewer, tenant, show=show)
    assert {str(step.kind) for step in page.context["rows"][0].steps} == kinds
    assert re.search(rf'href="\?show={show}" aria-current="true"', page.content.decode())


def test_the_last_attempts_and_events_are_shown_and_the_others_are_counted(
    viewer: Client, tenant: Tenant, retried: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MAX_ATTEMPTS_OF_CALL", 2)
    monkeypatch.setattr(traces, "MAX_EVENTS_OF_CALL", 4)
    page = get_page(viewer, tenant)
    names = [name for name, *_ in list_steps(page)]
    assert "Attempt 1" not in names
    assert {"Attempt 2", "Attempt 3", "ServiceCallSucceeded"} <= set(names)
    text = read_text(page)
    assert "1 earlier attempt: all attempts" in text
    assert "7 events not shown" in text


def test_events_that_retention_deleted_are_mentioned(
    viewer: Client, tenant: Tenant, retried: uuid.UUID
) -> None:
    OutboxEvent.objects.for_tenant(tenant.tenant_id).delete()
    page = get_page(viewer, tenant)
    assert "11 events not shown: the outbox keeps published events for a limited time" in read_text(page)
    assert {"Attempt 1", "Attempt 2", "Attempt 3"} <= {name for name, *_ in list_steps(page)}


# --- many calls ---------------------------------------------------------------------------------------------------


def test_many_calls_come_in_pages_without_their_steps(
    viewer: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_page, "PAGE_SIZE", 5)
    given = {"correlation_id": CORRELATION, "delay": timedelta(hours=1)}
    lifecycle.submit([build_command(tenant, name=f"job {number:02}", **given) for number in range(12)])
    found: list[str] = []
    url: str | None = build_trace_url(tenant)
    page = get_page(viewer, tenant)
    while url:
        page = viewer.get(url, headers=BROWSER)
        rows = page.context["rows"]
        assert all(not row.steps for row in rows)
        found += [row.call.name for row in rows]
        assert f"{len(rows)} of 12 calls" in read_text(page)
        more = re.search(r'rel="next" href="([^"]*)"', page.content.decode())
        url = build_trace_url(tenant) + unescape(more[1]) if more else None
    assert sorted(found) == [f"job {number:02}" for number in range(12)]
    assert "First page" in read_text(page)
    assert get_page(viewer, tenant, show="all").context["rows"][0].steps


def test_a_page_whose_calls_are_gone_leads_back(
    viewer: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_page, "PAGE_SIZE", 1)
    first, second = (submit_traced(tenant, delay=timedelta(hours=1)) for _ in range(2))
    page = get_page(viewer, tenant)
    (more,) = re.findall(r'rel="next" href="([^"]*)"', page.content.decode())
    lifecycle.delete(tenant.tenant_id, max(first, second))
    gone = viewer.get(build_trace_url(tenant) + unescape(more), headers=BROWSER)
    assert "No calls on this page" in read_text(gone)


# --- who sees it, and what is refused -----------------------------------------------------------------------------


def test_only_the_calls_of_the_tenant_are_shown(viewer: Client, tenant: Tenant, intruder: Tenant) -> None:
    submit_traced(tenant, "ours", delay=timedelta(hours=1))
    submit_traced(intruder, "theirs", delay=timedelta(hours=1))
    assert [row.call.name for row in get_page(viewer, tenant).context["rows"]] == ["ours"]
    assert [row.call.name for row in get_page(viewer, intruder).context["rows"]] == ["theirs"]


def test_a_trace_without_calls_is_not_found(viewer: Client, tenant: Tenant, intruder: Tenant) -> None:
    submit_traced(tenant, delay=timedelta(hours=1))
    assert "No such trace." in read_text(get_page(viewer, intruder, status=404))
    nobody = viewer.get(f"/traces/{new_id()}/{CORRELATION}/", headers=BROWSER)
    assert "No such tenant." in read_text(nobody)


@pytest.mark.parametrize("query", [{"show": "nonsense"}, {"cursor": "nonsense"}])
def test_an_invalid_parameter_is_refused(viewer: Client, tenant: Tenant, query: dict[str, str]) -> None:
    submit_traced(tenant)
    get_page(viewer, tenant, status=400, **query)


def test_a_user_without_a_role_is_sent_to_the_sign_in_page(outsider: Client, tenant: Tenant) -> None:
    submit_traced(tenant)
    assert outsider.get(build_trace_url(tenant)).status_code == 302


def test_names_are_escaped_and_secrets_are_not_shown(
    viewer: Client, tenant: Tenant, manual_engine: ManualEngine
) -> None:
    evil = "<script>alert(1)</script>"
    request = RequestSpec("POST", f"{URL}?access_token={CANARY}", {"Authorization": CANARY}, {"n": CANARY})
    submit_traced(tenant, evil, request=request)
    started = manual_engine.start_one()
    manual_engine.finish((started, build_response(started, 200, CANARY.encode(), {"Set-Cookie": CANARY})))
    page = get_page(viewer, tenant).content.decode()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert CANARY not in page


# --- refreshing ---------------------------------------------------------------------------------------------------


def test_the_page_refreshes_until_nothing_changes_by_itself(
    viewer: Client, tenant: Tenant, manual_engine: ManualEngine
) -> None:
    submit_traced(tenant)
    assert get_page(viewer, tenant).context["refresh_seconds"] == 2
    started = manual_engine.start_one()
    assert get_page(viewer, tenant).context["refresh_seconds"] == 2
    manual_engine.finish((started, build_response(started)))
    assert get_page(viewer, tenant).context["refresh_seconds"] == 5  # its events are not published yet
    drain(build_dispatcher())
    page = get_page(viewer, tenant)
    assert page.context["refresh_seconds"] == 0
    assert "data-live" not in page.content.decode().partition('id="trace"')[2].partition(">")[0]


def test_a_page_follows_live_calls_of_other_pages(
    viewer: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_page, "PAGE_SIZE", 1)
    lifecycle.cancel(tenant.tenant_id, submit_traced(tenant, delay=timedelta(hours=1)))
    with pin_time(add_to_noon(1)):
        submit_traced(tenant, delay=timedelta(hours=1))
        drain(build_dispatcher())
        assert get_page(viewer, tenant).context["refresh_seconds"] == 15


# --- where it is linked -------------------------------------------------------------------------------------------


def test_pages_that_show_a_correlation_id_link_to_its_trace(viewer: Client, tenant: Tenant) -> None:
    link = f'href="{build_trace_url(tenant)}"'
    call = submit_traced(tenant, delay=timedelta(hours=1))
    assert link in viewer.get(build_call_url(tenant.tenant_id, call)).content.decode()
    event = list_events(tenant, call)[0]
    assert link in viewer.get(f"/events/{event.id}/").content.decode()


def test_the_page_of_a_timer_links_to_its_trace(viewer: Client, tenant: Tenant) -> None:
    make_call(
        tenant, correlation_id=CORRELATION, external_id="order-42",
        request_spec={"method": "POST", "url": URL, "headers": {}, "body": {"executeAt": "2026-03-01T13:00:00Z"}},
    )  # fmt: skip
    query = {"tenant": str(tenant.tenant_id), "namespace": "default", "id": "order-42"}
    page = viewer.get("/timers/timer/", query, headers=BROWSER)
    assert f'href="{build_trace_url(tenant)}"' in page.content.decode()


def test_the_page_of_a_delivery_links_to_the_call_and_its_trace(viewer: Client, tenant: Tenant) -> None:
    endpoint, _ = create_endpoint(tenant.tenant_id, "http://example.test/")
    call = submit_traced(tenant, delay=timedelta(hours=1))
    drain(build_dispatcher(WebhookPublisher()))
    delivery = WebhookDelivery.objects.for_tenant(tenant.tenant_id).order_by("delivery_id")[0]
    url = f"/webhooks/{tenant.tenant_id}/{endpoint.endpoint_id}/deliveries/{delivery.delivery_id}/"
    page = viewer.get(url, headers=BROWSER).content.decode()
    assert f'href="{build_trace_url(tenant)}"' in page
    assert f'href="{build_call_url(tenant.tenant_id, call)}"' in page


def test_the_page_of_a_test_delivery_links_to_no_trace(operator: Client, tenant: Tenant) -> None:
    endpoint, _ = create_endpoint(tenant.tenant_id, "http://example.test/")
    sent = operator.post(f"/webhooks/{tenant.tenant_id}/{endpoint.endpoint_id}/test/")
    assert "/traces/" not in operator.get(sent["Location"], headers=BROWSER).content.decode()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "12 ms"),
        (2.25, "2.2 s"),
        (59, "59 s"),
        (100, "1 m 40 s"),
        (3600, "1 h"),
        (3605, "1 h"),
        (7800, "2 h 10 m"),
        (90_000, "1 d 1 h"),
        (86_400 + 60, "1 d"),
    ],
)
def test_a_span_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert format_span(timedelta(seconds=seconds)) == text

"""The details of a call show its whole history in order, from what is still stored."""

from __future__ import annotations

import re
import uuid
from datetime import datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.test import Client

from eventservice.db.now import pin_time
from eventservice.kernel.ids import new_id
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant
from execution.outcome import ErrorKind
from orchestration import lifecycle
from orchestration.commands import RequestSpec
from orchestration.lifecycle import MAX_INTERRUPTIONS
from orchestration.retries import RetryPolicy
from orchestration.states import Delivery, ResponseContract
from outbox.models import OutboxEvent
from tests.console.call_pages import BROWSER, CANARY, build_call_url, read_text
from tests.orchestration.support import (
    URL,
    ManualEngine,
    add_to_noon,
    build_error,
    build_response,
    list_events,
    submit,
)

pytestmark = pytest.mark.django_db
TABS = ("request", "response", "attempts", "events")
RETRIES = RetryPolicy(max_attempts=3, initial_interval=0)


@pytest.fixture
def acme(db: None) -> Tenant:
    return create_tenant("acme")


def get_page(client: Client, tenant: Tenant, service_call_id: Any, **query: str) -> Any:
    return client.get(build_call_url(tenant.tenant_id, service_call_id), query, headers=BROWSER)


def read_steps(page: Any) -> list[str]:
    """Return the texts of the timeline's steps."""
    timeline = page.content.decode().split('<ol class="timeline">')[1].split("</ol>")[0]
    items = timeline.split("<li")[1:]
    return [" ".join(re.sub(r"<[^>]*>", " ", "<li" + item).split()) for item in items]


def read_step_names(page: Any) -> list[str]:
    timeline = page.content.decode().split('<ol class="timeline">')[1].split("</ol>")[0]
    return re.findall(r"<strong>([^<]+)</strong>", timeline)


def test_the_latest_replays_are_linked(viewer: Client, acme: Tenant, manual_engine: ManualEngine) -> None:
    origin = submit(acme)
    manual_engine.finish((manual_engine.start_one(), build_error()))
    replays = [lifecycle.replay(acme.tenant_id, origin, new_id()).service_call_id for _ in range(4)]
    page = get_page(viewer, acme, origin).content.decode()
    places = [page.find(build_call_url(acme.tenant_id, one)) for one in reversed(replays)]
    assert places[:3] == sorted(places[:3])
    assert places[3] == -1
    assert f"replayOf={origin}" in page


# --- the timeline ---------------------------------------------------------------------------------------------


def test_the_timeline_goes_from_submission_to_outcome(
    viewer: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = submit(acme, due_at=add_to_noon(60))
    with pin_time(add_to_noon(67)):
        started = manual_engine.start_one()
    with pin_time(add_to_noon(68)):
        manual_engine.finish((started, build_response(started, 201)))
        page = get_page(viewer, acme, call)
    assert read_step_names(page) == ["Submitted", "Scheduled", "Due", "Started", "Attempt 1", "Succeeded"]
    submitted, scheduled, due, start, attempt, outcome = read_steps(page)
    assert "2026-03-01 12:00:00.000 UTC" in submitted
    assert "for 2026-03-01 12:01:00.000 UTC" in scheduled
    assert "2026-03-01 12:01:00.000 UTC" in due
    assert "7.0 s after the due time , on node" in start
    assert "201 in 12 ms" in attempt
    assert "now" in outcome
    events = {event.event_id: event for event in list_events(acme, call)}
    for event, step in zip(events.values(), (submitted, scheduled, due, start, outcome), strict=True):
        assert f"event …{str(event.event_id)[-8:]}" in step
        if cause := event.causation_id:
            assert f"caused by {events[cause].event_type} …{str(cause)[-8:]}" in step


def test_the_timeline_of_an_immediate_call_begins_with_its_submission(
    viewer: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    with pin_time(add_to_noon(0.000789)):
        call = submit(acme)
        manual_engine.start_one()
        page = get_page(viewer, acme, call)
    assert read_step_names(page)[:4] == ["Submitted", "Scheduled", "Due", "Started"]


def test_each_attempt_is_shown_with_its_result(
    viewer: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = submit(acme, retry_policy=RETRIES)
    for outcome in (
        build_error(kind=ErrorKind.TIMEOUT),
        build_response(status=503),
        build_response(status=400),
    ):
        started = manual_engine.start_one()
        manual_engine.finish((started, outcome._replace(key=started.key.execution_id)))
    page = get_page(viewer, acme, call)
    text = read_text(page)
    assert read_step_names(page)[3:] == [
        "Started",
        "Attempt 1",
        "Started",
        "Attempt 2",
        "Started",
        "Attempt 3",
        "Failed",
    ]
    assert "The target did not respond in time." in text
    assert "Status 400 is not retried." in text
    assert "3 of at most 3" in text


def test_the_cause_of_a_retry_is_linked(viewer: Client, acme: Tenant, manual_engine: ManualEngine) -> None:
    """The event is linked although it has no step in the timeline."""
    call = submit(acme, retry_policy=RETRIES)
    first = manual_engine.start_one()
    manual_engine.finish((first, build_response(first, 503)))
    second = manual_engine.start_one()
    (running,) = (event for event in list_events(acme, call) if event.event_id == second.key.execution_id)
    page = get_page(viewer, acme, call)
    assert f'caused by DueTimeReached <a href="?tab=events#event-{running.causation_id}">' in " ".join(
        page.content.decode().split()
    )
    assert f'id="event-{running.causation_id}"' in get_page(viewer, acme, call, tab="events").content.decode()


def test_a_deleted_cause_is_named_without_a_link(
    viewer: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = submit(acme)
    manual_engine.start_one()
    (running,) = (event for event in list_events(acme, call) if event.event_type == "ServiceCallRunning")
    assert running.causation_id is not None
    OutboxEvent.objects.for_tenant(acme.tenant_id).filter(event_id=running.causation_id).delete()
    page = get_page(viewer, acme, call)
    (started,) = (step for step in read_steps(page) if step.startswith("Started"))
    assert started.endswith(f"caused by …{str(running.causation_id)[-8:]}")
    assert f"#event-{running.causation_id}" not in page.content.decode()


def test_rescheduling_and_canceling_are_steps(viewer: Client, acme: Tenant, at_noon: datetime) -> None:
    call = submit(acme, due_at=add_to_noon(600))
    with pin_time(add_to_noon(10)):
        lifecycle.reschedule(acme.tenant_id, call, add_to_noon(1200))
    with pin_time(add_to_noon(20)):
        lifecycle.cancel(acme.tenant_id, call)
        page = get_page(viewer, acme, call)
    assert read_step_names(page) == ["Submitted", "Scheduled", "Rescheduled", "Canceled"]
    assert "for 2026-03-01 12:20:00.000 UTC" in read_steps(page)[2]
    assert "before anything was sent" in read_text(page)


def test_the_next_step_is_shown(viewer: Client, acme: Tenant, manual_engine: ManualEngine) -> None:
    call = submit(acme, retry_policy=RetryPolicy(max_attempts=3, initial_interval=60))
    started = manual_engine.start_one()
    assert read_step_names(get_page(viewer, acme, call))[-1] == "Running"
    manual_engine.finish((started, build_response(started, 503, headers={"Retry-After": "120"})))
    page = get_page(viewer, acme, call)
    assert read_steps(page)[-1].startswith("Due attempt 2 in 2 m")
    assert "1 of at most 3; next in 2 m" in read_text(page)


def test_the_timeline_needs_no_events(viewer: Client, acme: Tenant, manual_engine: ManualEngine) -> None:
    call = submit(acme, due_at=add_to_noon(60))
    with pin_time(add_to_noon(67)):
        started = manual_engine.start_one()
        manual_engine.finish((started, build_response(started)))
    OutboxEvent.objects.for_tenant(acme.tenant_id).delete()
    page = get_page(viewer, acme, call)
    assert read_step_names(page) == ["Submitted", "Scheduled", "Due", "Started", "Attempt 1", "Succeeded"]
    assert "7.0 s after the due time" in read_text(page)
    assert "The events of this call have been deleted" in read_text(page)
    assert "This call's events have been deleted" in read_text(get_page(viewer, acme, call, tab="events"))


def test_an_interruption_is_explained(viewer: Client, acme: Tenant, manual_engine: ManualEngine) -> None:
    call = submit(acme)
    lifecycle.resolve_interrupted([manual_engine.start_one().key])
    assert "It will be repeated with the same idempotency key." in read_text(get_page(viewer, acme, call))
    second = manual_engine.start_one()
    manual_engine.finish((second, build_response(second)))
    text = read_text(get_page(viewer, acme, call))
    assert "The outcome of attempt 1 is unknown: node" in text
    assert "so it was repeated as attempt 2 with the same idempotency key." in text
    assert "1 of at most 1, 1 interrupted" in text


def test_an_interruption_that_ends_a_call_is_explained(
    viewer: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    once = submit(acme, delivery=Delivery.AT_MOST_ONCE)
    lifecycle.resolve_interrupted([manual_engine.start_one().key])
    assert "The call is delivered at most once, so it was not attempted again." in read_text(
        get_page(viewer, acme, once)
    )
    often = submit(acme)
    for _ in range(MAX_INTERRUPTIONS + 1):
        lifecycle.resolve_interrupted([manual_engine.start_one().key])
    assert "It was interrupted too often to be attempted again." in read_text(get_page(viewer, acme, often))


def test_the_timeline_has_the_first_and_last_of_many_attempts(
    viewer: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = submit(acme, retry_policy=RetryPolicy(max_attempts=20, initial_interval=0))
    for _ in range(20):
        started = manual_engine.start_one()
        manual_engine.finish((started, build_response(started, 503)))
    page = get_page(viewer, acme, call)
    assert "10 more attempts: see Attempts." in read_text(page)
    assert {"Attempt 3", "Attempt 14", "Attempt 20"} <= set(read_step_names(page))
    assert "Attempt 10" not in read_step_names(page)
    assert (
        get_page(viewer, acme, call, tab="attempts").content.decode().count("?tab=response&amp;attempt=")
        >= 20
    )


# --- secrets, escaping and bodies -----------------------------------------------------------------------------


def test_secrets_are_never_shown(operator: Client, acme: Tenant, manual_engine: ManualEngine) -> None:
    Tenant.objects.filter(pk=acme.tenant_id).update(secret_headers=["x-named-by-tenant"])
    secrets = {"Authorization": f"Bearer {CANARY}", "X-Api-Key": CANARY, "X-Named-By-Tenant": CANARY}
    url = f"{URL}?access_token={CANARY}"
    call = submit(acme, request=RequestSpec("POST", url, {**secrets, "X-Shown": "yes"}, {"n": 1}))
    started = manual_engine.start_one()
    manual_engine.finish((started, build_response(started, headers={"Set-Cookie": CANARY})))
    replayed = lifecycle.replay(acme.tenant_id, call, uuid.uuid4()).service_call_id
    pages = [get_page(operator, acme, call, tab=tab) for tab in TABS]
    pages += [get_page(operator, acme, replayed, tab=tab) for tab in TABS]
    for name in ("call-curl", "call-replay", "sent-call", "call-request-body", "call-response-body"):
        pages.append(operator.get(build_call_url(acme.tenant_id, call, name)))
    pages.append(operator.get(f"/calls/new/?copy={acme.tenant_id}/{call}"))
    pages.append(operator.get(f"/calls/new/?sent={acme.tenant_id}/{call}"))
    for page in pages:
        assert page.status_code == 200
        assert CANARY not in page.content.decode()
        assert "enc:v1:" not in page.content.decode()
    assert "Authorization ••••••" in read_text(pages[0])
    curl = read_text(operator.get(build_call_url(acme.tenant_id, call, "call-curl")))
    assert "-H 'Authorization: ••••••'" in curl
    assert (
        "Secrets are masked. Replace the values of Authorization , X-Api-Key , X-Named-By-Tenant before you run"
        in curl
    )
    assert "-H 'X-Shown: yes'" in curl


def test_a_value_that_is_not_secret_is_shown(operator: Client, acme: Tenant) -> None:
    call = submit(acme, request=RequestSpec("POST", URL, {"X-Shown": CANARY}))
    assert CANARY in read_text(get_page(operator, acme, call, tab="request"))


def test_names_tags_and_bodies_are_escaped(
    operator: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    evil = "<script>alert(1)</script>"
    call = submit(
        acme, name=evil, tags=frozenset({evil}), request=RequestSpec("POST", URL, {"X-A": evil}, evil)
    )
    started = manual_engine.start_one()
    manual_engine.finish((started, build_response(started, 200, evil.encode(), {"X-B": evil})))
    for tab in TABS:
        assert "<script>alert" not in get_page(operator, acme, call, tab=tab).content.decode()
    download = operator.get(build_call_url(acme.tenant_id, call, "call-response-body"))
    assert download.content.decode() == evil
    assert download["Content-Type"] == "text/plain; charset=utf-8"
    assert download["Content-Disposition"] == f'attachment; filename="response-{call}.txt"'
    assert download["X-Content-Type-Options"] == "nosniff"


def test_a_large_body_is_cut_on_the_page_and_whole_in_the_download(viewer: Client, acme: Tenant) -> None:
    call = submit(acme, request=RequestSpec("POST", URL, {}, {"x": "y" * 1_000_000}))
    page = get_page(viewer, acme, call, tab="request")
    assert len(page.content) < 120_000
    assert "Showing the first 64.0 KiB of 976.6 KiB." in read_text(page)
    assert len(viewer.get(build_call_url(acme.tenant_id, call, "call-request-body")).content) == 1_000_008
    curl = read_text(viewer.get(build_call_url(acme.tenant_id, call, "call-curl")))
    assert f"--data-binary @request-{call}.txt" in curl


def test_a_response_that_was_not_stored_whole_says_so(
    viewer: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = submit(acme)
    started = manual_engine.start_one()
    manual_engine.finish((started, build_response(started, 200, b"x" * 65536)._replace(body_size=3_000_000)))
    text = read_text(get_page(viewer, acme, call))
    assert "Showing the first 64.0 KiB of 2.9 MiB. The rest was not stored." in text


def test_json_is_formatted_unless_that_would_change_it(
    viewer: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = submit(acme)
    started = manual_engine.start_one()
    manual_engine.finish((started, build_response(started, 200, b'{"a":1,"a":2}')))
    assert "{&quot;a&quot;:1,&quot;a&quot;:2}" in get_page(viewer, acme, call).content.decode()


def test_each_attempt_has_its_own_response(viewer: Client, acme: Tenant, manual_engine: ManualEngine) -> None:
    call = submit(acme, retry_policy=RETRIES)
    keys = []
    for body in (b"first answer", b"second answer"):
        started = manual_engine.start_one()
        keys.append(started.key.execution_id)
        manual_engine.finish((started, build_response(started, 503, body)))
    assert "second answer" in read_text(get_page(viewer, acme, call))
    assert "first answer" in read_text(get_page(viewer, acme, call, attempt=str(keys[0])))
    assert get_page(viewer, acme, call, attempt=str(uuid.uuid4())).status_code == 404


def test_related_calls_are_linked(viewer: Client, acme: Tenant, manual_engine: ManualEngine) -> None:
    call = submit(acme)
    started = manual_engine.start_one()
    manual_engine.finish((started, build_response(started)))
    replayed = lifecycle.replay(acme.tenant_id, call, uuid.uuid4()).service_call_id
    page = get_page(viewer, acme, replayed).content.decode()
    assert f'href="{build_call_url(acme.tenant_id, call)}"' in page
    assert f"?tenant={acme.tenant_id}&amp;host=%22target.test%22" in page
    (trace,) = re.findall(r'href="(/traces/[^"]*)"', page)
    assert build_call_url(acme.tenant_id, replayed) in viewer.get(trace, headers=BROWSER).content.decode()


# --- refreshing and permissions ------------------------------------------------------------------------------------------


def test_the_page_refreshes_until_the_call_has_ended(
    viewer: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = submit(acme)
    assert 'data-live="2"' in get_page(viewer, acme, call).content.decode()
    started = manual_engine.start_one()
    assert 'data-live="2"' in get_page(viewer, acme, call).content.decode()
    manual_engine.finish((started, build_response(started)))
    assert "data-live" not in get_page(viewer, acme, call).content.decode()


def test_the_page_rarely_refreshes_long_before_the_due_time(
    viewer: Client, acme: Tenant, at_noon: datetime
) -> None:
    call = submit(acme, due_at=at_noon + timedelta(days=1))
    assert 'data-live="60"' in get_page(viewer, acme, call).content.decode()


def test_unknown_calls_and_unknown_tenants_are_indistinguishable(viewer: Client, acme: Tenant) -> None:
    other = create_tenant("other")
    call = submit(acme)
    texts = set()
    for tenant_id, service_call_id in (
        (acme.tenant_id, uuid.uuid4()),
        (other.tenant_id, call),
        (uuid.uuid4(), call),
    ):
        for name in ("call", "call-curl", "call-request-body", "call-response-body"):
            page = viewer.get(build_call_url(tenant_id, service_call_id, name), headers=BROWSER)
            assert page.status_code == 404
            texts.add(re.sub(r"[0-9a-f-]{36}", "", read_text(page)))
    assert len(texts) == 1


def test_a_viewer_is_offered_no_actions(
    viewer: Client, operator: Client, acme: Tenant, at_noon: datetime
) -> None:
    call = submit(acme, due_at=add_to_noon(60), tags=frozenset({"t"}))
    seen, offered = (get_page(client, acme, call).content.decode() for client in (viewer, operator))
    for action in ("cancel", "reschedule", "run-now", "favorite", "tags"):
        address = build_call_url(acme.tenant_id, call, f"call-{action}")
        assert address in offered
        assert address not in seen
    assert "Copy as curl" in seen


def test_a_page_needs_few_queries_for_any_number_of_attempts(
    viewer: Client, acme: Tenant, manual_engine: ManualEngine, django_assert_max_num_queries: Any
) -> None:
    call = submit(acme, retry_policy=RetryPolicy(max_attempts=20, initial_interval=0))
    for _ in range(10):
        started = manual_engine.start_one()
        manual_engine.finish((started, build_response(started, 503)))
    for tab in TABS:
        with django_assert_max_num_queries(24):
            get_page(viewer, acme, call, tab=tab)


# --- durable timers -----------------------------------------------------------------------------------------------


def test_the_call_of_a_durable_timer_links_to_the_timer(viewer: Client, acme: Tenant) -> None:
    body = {"payload": 1, "executeAt": "2026-03-01T12:00:00.000Z"}
    call = submit(acme, external_id="order 1/a&b", request=RequestSpec("POST", URL, {}, body))
    page = get_page(viewer, acme, call)
    assert "Durable timer default / order 1/a&b" in read_text(page)
    (link,) = re.findall(r'href="(/timers/[^"?]+\?[^"]*)"', page.content.decode())
    timer = viewer.get(unescape(link), headers=BROWSER)
    assert timer.status_code == 200
    assert "order 1/a&b" in read_text(timer)


def test_the_canceled_call_of_a_durable_timer_links_to_the_list_of_timers(
    viewer: Client, acme: Tenant
) -> None:
    call = submit(acme, external_id="order-1")
    lifecycle.cancel(acme.tenant_id, call)
    (link,) = re.findall(r'href="(/timers/\?[^"]*)"', get_page(viewer, acme, call).content.decode())
    assert "order-1" in read_text(viewer.get(unescape(link), headers=BROWSER))


def test_another_call_has_no_row_for_a_timer(viewer: Client, acme: Tenant) -> None:
    assert "Durable timer" not in read_text(get_page(viewer, acme, submit(acme)))


def test_attempts_that_a_callback_asked_for_are_counted_without_a_limit(
    viewer: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = submit(acme, external_id="order-1", response_contract=ResponseContract.CALLBACK)
    again = b'{"ok": false, "nextExecuteAt": "2026-03-01T13:00:00Z"}'
    first = manual_engine.start_one()
    manual_engine.finish((first, build_response(first, body=again)))
    text = read_text(get_page(viewer, acme, call))
    assert "Attempts 1; next in" in text
    assert "The next attempt is due" in text
    with pin_time(add_to_noon(3600)):
        second = manual_engine.start_one()
        manual_engine.finish((second, build_response(second, body=b'{"ok": false}')))
        text = read_text(get_page(viewer, acme, call))
    assert "Attempts 2 Tags" in text
    assert 'The callback answered {"ok": false}. The retry policy allows no further attempt.' in text

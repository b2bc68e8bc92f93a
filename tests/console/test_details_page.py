"""The Details page: a call's whole story, in order, from whatever is still known of it."""

from __future__ import annotations

import html
import re
import uuid
from datetime import datetime, timedelta
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
from orchestration.states import Delivery
from outbox.models import OutboxEvent
from tests.console.call_pages import BROWSER, CANARY, address_of, text_of
from tests.orchestration.support import URL, Hand, after, errored, events_of, responded, submit

pytestmark = pytest.mark.django_db
TABS = ("request", "response", "attempts", "events")
RETRIES = RetryPolicy(max_attempts=3, initial_interval=0)


@pytest.fixture
def acme(db: None) -> Tenant:
    return create_tenant("acme")


@pytest.fixture
def hand(db: None, at_noon: datetime) -> Hand:
    return Hand()


def page_of(client: Client, tenant: Tenant, service_call_id: Any, **query: str) -> Any:
    return client.get(address_of(tenant.tenant_id, service_call_id), query, headers=BROWSER)


def steps_of(page: Any) -> list[str]:
    """The steps of the timeline, as they are read."""
    timeline = page.content.decode().split('<ol class="timeline">')[1].split("</ol>")[0]
    items = timeline.split("<li")[1:]
    return [" ".join(re.sub(r"<[^>]*>", " ", "<li" + item).split()) for item in items]


def names_of(page: Any) -> list[str]:
    timeline = page.content.decode().split('<ol class="timeline">')[1].split("</ol>")[0]
    return re.findall(r"<strong>([^<]+)</strong>", timeline)


def test_it_leads_to_its_replays_the_latest_first(viewer: Client, acme: Tenant, hand: Hand) -> None:
    origin = submit(acme)
    hand.finish((hand.start_one(), errored()))
    replays = [lifecycle.replay(acme.tenant_id, origin, new_id()).service_call_id for _ in range(4)]
    page = page_of(viewer, acme, origin).content.decode()
    places = [page.find(address_of(acme.tenant_id, one)) for one in reversed(replays)]
    assert places[:3] == sorted(places[:3])
    assert places[3] == -1
    assert f"replayOf={origin}" in page


# --- the timeline ---------------------------------------------------------------------------------------------


def test_the_timeline_goes_from_submission_to_the_outcome(viewer: Client, acme: Tenant, hand: Hand) -> None:
    call = submit(acme, due_at=after(60))
    with pin_time(after(67)):
        started = hand.start_one()
    with pin_time(after(68)):
        hand.finish((started, responded(started, 201)))
        page = page_of(viewer, acme, call)
    assert names_of(page) == ["Submitted", "Scheduled", "Due", "Started", "Attempt 1", "Succeeded"]
    submitted, scheduled, due, start, attempt, outcome = steps_of(page)
    assert "2026-03-01 12:00:00.000 UTC" in submitted
    assert "for 2026-03-01 12:01:00.000 UTC" in scheduled
    assert "2026-03-01 12:01:00.000 UTC" in due
    assert "7.0 s after it was due , by node" in start
    assert "201 in 12 ms" in attempt
    assert "now" in outcome
    events = {event.event_id: event for event in events_of(acme, call)}
    for event, step in zip(events.values(), (submitted, scheduled, due, start, outcome), strict=True):
        assert f"event …{str(event.event_id)[-8:]}" in step
        if cause := event.causation_id:
            assert f"caused by {events[cause].event_type} …{str(cause)[-8:]}" in step


def test_a_call_that_is_due_at_once_is_submitted_first(viewer: Client, acme: Tenant, hand: Hand) -> None:
    with pin_time(after(0.000789)):
        call = submit(acme)
        hand.start_one()
        page = page_of(viewer, acme, call)
    assert names_of(page)[:4] == ["Submitted", "Scheduled", "Due", "Started"]


def test_each_retry_is_there_with_what_came_of_it(viewer: Client, acme: Tenant, hand: Hand) -> None:
    call = submit(acme, retry_policy=RETRIES)
    for outcome in (errored(kind=ErrorKind.TIMEOUT), responded(status=503), responded(status=400)):
        started = hand.start_one()
        hand.finish((started, outcome._replace(key=started.key.execution_id)))
    page = page_of(viewer, acme, call)
    text = text_of(page)
    assert names_of(page)[3:] == [
        "Started",
        "Attempt 1",
        "Started",
        "Attempt 2",
        "Started",
        "Attempt 3",
        "Failed",
    ]
    assert "The target did not answer in time." in text
    assert "A call that is answered with 400 is not tried again." in text
    assert "3 of at most 3" in text


def test_what_led_to_a_retry_is_linked(viewer: Client, acme: Tenant, hand: Hand) -> None:
    """No step of the timeline stands for it."""
    call = submit(acme, retry_policy=RETRIES)
    first = hand.start_one()
    hand.finish((first, responded(first, 503)))
    second = hand.start_one()
    (running,) = (event for event in events_of(acme, call) if event.event_id == second.key.execution_id)
    page = page_of(viewer, acme, call)
    assert (
        f'caused by DueTimeReached <a href="?tab=events#event-{running.causation_id}">'
        in page.content.decode()
    )
    assert f'id="event-{running.causation_id}"' in page_of(viewer, acme, call, tab="events").content.decode()


def test_a_cause_that_is_gone_is_named_without_a_link(viewer: Client, acme: Tenant, hand: Hand) -> None:
    call = submit(acme)
    hand.start_one()
    (running,) = (event for event in events_of(acme, call) if event.event_type == "ServiceCallRunning")
    assert running.causation_id is not None
    OutboxEvent.objects.for_tenant(acme.tenant_id).filter(event_id=running.causation_id).delete()
    page = page_of(viewer, acme, call)
    (started,) = (step for step in steps_of(page) if step.startswith("Started"))
    assert started.endswith(f"caused by …{str(running.causation_id)[-8:]}")
    assert f"#event-{running.causation_id}" not in page.content.decode()


def test_what_somebody_changed_is_in_its_place(viewer: Client, acme: Tenant, at_noon: datetime) -> None:
    call = submit(acme, due_at=after(600))
    with pin_time(after(10)):
        lifecycle.reschedule(acme.tenant_id, call, after(1200))
    with pin_time(after(20)):
        lifecycle.cancel(acme.tenant_id, call)
        page = page_of(viewer, acme, call)
    assert names_of(page) == ["Submitted", "Scheduled", "Rescheduled", "Canceled"]
    assert "for 2026-03-01 12:20:00.000 UTC" in steps_of(page)[2]
    assert "before anything was sent" in text_of(page)


def test_what_comes_next_is_told(viewer: Client, acme: Tenant, hand: Hand) -> None:
    call = submit(acme, retry_policy=RetryPolicy(max_attempts=3, initial_interval=60))
    started = hand.start_one()
    assert names_of(page_of(viewer, acme, call))[-1] == "Running"
    hand.finish((started, responded(started, 503, headers={"Retry-After": "120"})))
    page = page_of(viewer, acme, call)
    assert steps_of(page)[-1].startswith("Due attempt 2 in 2 m")
    assert "1 of at most 3; next in 2 m" in text_of(page)


def test_when_the_events_are_gone_the_call_and_its_attempts_still_tell(
    viewer: Client, acme: Tenant, hand: Hand
) -> None:
    call = submit(acme, due_at=after(60))
    with pin_time(after(67)):
        started = hand.start_one()
        hand.finish((started, responded(started)))
    OutboxEvent.objects.for_tenant(acme.tenant_id).delete()
    page = page_of(viewer, acme, call)
    assert names_of(page) == ["Submitted", "Scheduled", "Due", "Started", "Attempt 1", "Succeeded"]
    assert "7.0 s after it was due" in text_of(page)
    assert "Its events are gone" in text_of(page)
    assert "Its events are gone" in text_of(page_of(viewer, acme, call, tab="events"))


def test_an_interruption_is_explained(viewer: Client, acme: Tenant, hand: Hand) -> None:
    call = submit(acme)
    lifecycle.resolve_interrupted([hand.start_one().key])
    assert "It will be made again under the same idempotency key." in text_of(page_of(viewer, acme, call))
    second = hand.start_one()
    hand.finish((second, responded(second)))
    text = text_of(page_of(viewer, acme, call))
    assert "The end of attempt 1 was not seen: the node" in text
    assert "so it was made again as attempt 2, under the same idempotency key." in text
    assert "1 of at most 1, and 1 interrupted" in text


def test_an_interruption_that_ends_a_call_says_why(viewer: Client, acme: Tenant, hand: Hand) -> None:
    once = submit(acme, delivery=Delivery.AT_MOST_ONCE)
    lifecycle.resolve_interrupted([hand.start_one().key])
    assert "It is delivered at most once, so it was not made again." in text_of(page_of(viewer, acme, once))
    often = submit(acme)
    for _ in range(MAX_INTERRUPTIONS + 1):
        lifecycle.resolve_interrupted([hand.start_one().key])
    assert "It was interrupted too often to be made again." in text_of(page_of(viewer, acme, often))


def test_of_many_attempts_the_first_and_the_last_are_in_the_timeline(
    viewer: Client, acme: Tenant, hand: Hand
) -> None:
    call = submit(acme, retry_policy=RetryPolicy(max_attempts=20, initial_interval=0))
    for _ in range(20):
        started = hand.start_one()
        hand.finish((started, responded(started, 503)))
    page = page_of(viewer, acme, call)
    assert "10 more attempts: see Attempts." in text_of(page)
    assert {"Attempt 3", "Attempt 14", "Attempt 20"} <= set(names_of(page))
    assert "Attempt 10" not in names_of(page)
    assert (
        page_of(viewer, acme, call, tab="attempts").content.decode().count("?tab=response&amp;attempt=") >= 20
    )


# --- what is shown, and what never is -----------------------------------------------------------------------------


def test_a_secret_is_nowhere(operator: Client, acme: Tenant, hand: Hand) -> None:
    Tenant.objects.filter(pk=acme.tenant_id).update(secret_headers=["x-named-by-tenant"])
    secrets = {"Authorization": f"Bearer {CANARY}", "X-Api-Key": CANARY, "X-Named-By-Tenant": CANARY}
    call = submit(acme, request=RequestSpec("POST", URL, {**secrets, "X-Shown": "yes"}, {"n": 1}))
    started = hand.start_one()
    hand.finish((started, responded(started, headers={"Set-Cookie": CANARY})))
    replayed = lifecycle.replay(acme.tenant_id, call, uuid.uuid4()).service_call_id
    pages = [page_of(operator, acme, call, tab=tab) for tab in TABS]
    pages += [page_of(operator, acme, replayed, tab=tab) for tab in TABS]
    for name in ("call-curl", "call-replay", "sent-call", "call-request-body", "call-response-body"):
        pages.append(operator.get(address_of(acme.tenant_id, call, name)))
    pages.append(operator.get(f"/calls/new/?copy={acme.tenant_id}/{call}"))
    pages.append(operator.get(f"/calls/new/?sent={acme.tenant_id}/{call}"))
    for page in pages:
        assert page.status_code == 200
        assert CANARY not in page.content.decode()
        assert "enc:v1:" not in page.content.decode()
    assert "Authorization ••••••" in text_of(pages[0])
    curl = text_of(operator.get(address_of(acme.tenant_id, call, "call-curl")))
    assert "-H 'Authorization: ••••••'" in curl
    assert (
        "Secrets stay masked: put the values of Authorization , X-Api-Key , X-Named-By-Tenant in yourself."
        in curl
    )
    assert "-H 'X-Shown: yes'" in curl


def test_a_canary_that_is_no_secret_is_seen(operator: Client, acme: Tenant) -> None:
    call = submit(acme, request=RequestSpec("POST", URL, {"X-Shown": CANARY}))
    assert CANARY in text_of(page_of(operator, acme, call, tab="request"))


def test_names_tags_and_bodies_are_text(operator: Client, acme: Tenant, hand: Hand) -> None:
    evil = "<script>alert(1)</script>"
    call = submit(
        acme, name=evil, tags=frozenset({evil}), request=RequestSpec("POST", URL, {"X-A": evil}, evil)
    )
    started = hand.start_one()
    hand.finish((started, responded(started, 200, evil.encode(), {"X-B": evil})))
    for tab in TABS:
        assert "<script>alert" not in page_of(operator, acme, call, tab=tab).content.decode()
    download = operator.get(address_of(acme.tenant_id, call, "call-response-body"))
    assert download.content.decode() == evil
    assert download["Content-Type"] == "text/plain; charset=utf-8"
    assert download["Content-Disposition"] == f'attachment; filename="response-{call}.txt"'
    assert download["X-Content-Type-Options"] == "nosniff"


def test_a_large_body_is_cut_on_the_page_and_whole_in_the_file(viewer: Client, acme: Tenant) -> None:
    call = submit(acme, request=RequestSpec("POST", URL, {}, {"x": "y" * 1_000_000}))
    page = page_of(viewer, acme, call, tab="request")
    assert len(page.content) < 120_000
    assert "Shown: the first 64.0 kB of 976.6 kB." in text_of(page)
    assert len(viewer.get(address_of(acme.tenant_id, call, "call-request-body")).content) == 1_000_008
    curl = text_of(viewer.get(address_of(acme.tenant_id, call, "call-curl")))
    assert f"--data-binary @request-{call}.txt" in curl


def test_of_a_response_that_was_not_kept_whole_the_page_says_so(
    viewer: Client, acme: Tenant, hand: Hand
) -> None:
    call = submit(acme)
    started = hand.start_one()
    hand.finish((started, responded(started, 200, b"x" * 65536)._replace(body_size=3_000_000)))
    text = text_of(page_of(viewer, acme, call))
    assert "Shown: the first 64.0 kB of 2.9 MB. The rest was not kept." in text


def test_json_is_set_out_unless_that_would_change_it(viewer: Client, acme: Tenant, hand: Hand) -> None:
    call = submit(acme)
    started = hand.start_one()
    hand.finish((started, responded(started, 200, b'{"a":1,"a":2}')))
    assert "{&quot;a&quot;:1,&quot;a&quot;:2}" in page_of(viewer, acme, call).content.decode()


def test_each_attempt_has_its_own_answer(viewer: Client, acme: Tenant, hand: Hand) -> None:
    call = submit(acme, retry_policy=RETRIES)
    keys = []
    for body in (b"first answer", b"second answer"):
        started = hand.start_one()
        keys.append(started.key.execution_id)
        hand.finish((started, responded(started, 503, body)))
    assert "second answer" in text_of(page_of(viewer, acme, call))
    assert "first answer" in text_of(page_of(viewer, acme, call, attempt=str(keys[0])))
    assert page_of(viewer, acme, call, attempt=str(uuid.uuid4())).status_code == 404


def test_what_it_belongs_to_is_linked(viewer: Client, acme: Tenant, hand: Hand) -> None:
    call = submit(acme)
    started = hand.start_one()
    hand.finish((started, responded(started)))
    replayed = lifecycle.replay(acme.tenant_id, call, uuid.uuid4()).service_call_id
    page = page_of(viewer, acme, replayed).content.decode()
    assert f'href="{address_of(acme.tenant_id, call)}"' in page
    assert f"?tenant={acme.tenant_id}&amp;host=target.test" in page
    (together,) = re.findall(r'href="(/calls/\?[^"]*correlationId=[^"]*)"', page)
    assert str(replayed)[-8:] in text_of(viewer.get(html.unescape(together), headers=BROWSER))


# --- live, and not there ------------------------------------------------------------------------------------------


def test_it_is_looked_at_again_until_it_has_ended(viewer: Client, acme: Tenant, hand: Hand) -> None:
    call = submit(acme)
    assert 'data-live="2"' in page_of(viewer, acme, call).content.decode()
    started = hand.start_one()
    assert 'data-live="2"' in page_of(viewer, acme, call).content.decode()
    hand.finish((started, responded(started)))
    assert "data-live" not in page_of(viewer, acme, call).content.decode()


def test_far_from_its_time_it_is_looked_at_seldom(viewer: Client, acme: Tenant, at_noon: datetime) -> None:
    call = submit(acme, due_at=at_noon + timedelta(days=1))
    assert 'data-live="60"' in page_of(viewer, acme, call).content.decode()


def test_an_unknown_call_and_an_unknown_tenant_are_the_same(viewer: Client, acme: Tenant) -> None:
    other = create_tenant("other")
    call = submit(acme)
    texts = set()
    for tenant_id, service_call_id in (
        (acme.tenant_id, uuid.uuid4()),
        (other.tenant_id, call),
        (uuid.uuid4(), call),
    ):
        for name in ("call", "call-curl", "call-request-body", "call-response-body"):
            page = viewer.get(address_of(tenant_id, service_call_id, name), headers=BROWSER)
            assert page.status_code == 404
            texts.add(re.sub(r"[0-9a-f-]{36}", "", text_of(page)))
    assert len(texts) == 1


def test_a_viewer_is_offered_nothing_to_do(
    viewer: Client, operator: Client, acme: Tenant, at_noon: datetime
) -> None:
    call = submit(acme, due_at=after(60), tags=frozenset({"t"}))
    seen, offered = (page_of(client, acme, call).content.decode() for client in (viewer, operator))
    for action in ("cancel", "reschedule", "run-now", "favorite", "tags"):
        address = address_of(acme.tenant_id, call, f"call-{action}")
        assert address in offered
        assert address not in seen
    assert "Copy as curl" in seen


def test_a_page_costs_a_few_queries_however_many_attempts_there_are(
    viewer: Client, acme: Tenant, hand: Hand, django_assert_max_num_queries: Any
) -> None:
    call = submit(acme, retry_policy=RetryPolicy(max_attempts=20, initial_interval=0))
    for _ in range(10):
        started = hand.start_one()
        hand.finish((started, responded(started, 503)))
    for tab in TABS:
        with django_assert_max_num_queries(24):
            page_of(viewer, acme, call, tab=tab)

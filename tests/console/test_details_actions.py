"""What may be done with a call: offered when its state allows, asked before, done once, noted, and refused with a reason."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from eventservice.db.now import pin_time
from eventservice.operators.models import OperatorAction
from eventservice.tenants.directory import clear_profile_cache, create_tenant, update_tenant
from eventservice.tenants.models import Tenant
from orchestration import admission, lifecycle
from orchestration.models import ServiceCallTag
from tests.console.call_pages import BROWSER, address_of, calls, text_of
from tests.orchestration.support import Hand, after, call_of, errored, responded, status_of, submit

pytestmark = pytest.mark.django_db
ACTIONS = ("cancel", "reschedule", "run-now", "replay")
LATER = {"date": "2026-07-01", "time": "14:30", "zone": "Europe/Berlin"}


@pytest.fixture(autouse=True)
def acme(db: None) -> Tenant:
    admission.forget_allowances()
    return create_tenant("acme")


@pytest.fixture
def hand(db: None, at_noon: datetime) -> Hand:
    return Hand()


def post(client: Client, tenant: Tenant, call: Any, action: str, **fields: Any) -> Any:
    return client.post(address_of(tenant.tenant_id, call, f"call-{action}"), fields, headers=BROWSER)


def page_of(client: Client, tenant: Tenant, call: Any, name: str = "call", **query: str) -> Any:
    return client.get(address_of(tenant.tenant_id, call, name), query, headers=BROWSER)


def noted() -> list[tuple[str, str, str]]:
    actions = OperatorAction.across_tenants.order_by("id")
    return [(action.user, action.action, action.subject) for action in actions]


def tags_of(tenant: Tenant, call: Any) -> set[str]:
    tags = ServiceCallTag.objects.for_tenant(tenant.tenant_id).filter(service_call_id=call)
    return set(tags.values_list("tag", flat=True))


def ended(hand: Hand, tenant: Tenant, **terms: Any) -> uuid.UUID:
    call = submit(tenant, **terms)
    started = hand.start_one()
    hand.finish((started, responded(started)))
    return call


# --- offered, and asked -------------------------------------------------------------------------------------------


def offered(client: Client, tenant: Tenant, call: Any) -> set[str]:
    page = page_of(client, tenant, call).content.decode()
    return {a for a in ACTIONS if address_of(tenant.tenant_id, call, f"call-{a}") in page}


def test_what_is_offered_is_what_the_state_allows(operator: Client, acme: Tenant, hand: Hand) -> None:
    call = submit(acme)
    assert offered(operator, acme, call) == {"cancel", "reschedule", "run-now"}
    started = hand.start_one()
    assert offered(operator, acme, call) == {"cancel"}
    lifecycle.cancel(acme.tenant_id, call)
    assert offered(operator, acme, call) == set()
    assert "Cancel was asked for" in text_of(page_of(operator, acme, call))
    hand.finish((started, errored(started)))
    assert offered(operator, acme, call) == {"replay"}


def test_each_asks_first_and_says_what_it_will_touch(operator: Client, acme: Tenant, hand: Hand) -> None:
    done, waiting = ended(hand, acme), submit(acme, due_at=after(60))
    replay = text_of(page_of(operator, acme, done, "call-replay"))
    assert "Replay makes a new call, POST http://target.test/hook, now" in replay
    assert "POST http://target.test/hook will not be made" in text_of(
        page_of(operator, acme, waiting, "call-cancel")
    )
    run_now = text_of(page_of(operator, acme, waiting, "call-run-now"))
    assert "is made now instead of at 2026-03-01 12:01:00 UTC" in run_now
    assert len(calls()) == 2
    assert noted() == []


def test_a_question_that_comes_too_late_says_so(operator: Client, acme: Tenant, hand: Hand) -> None:
    call = ended(hand, acme)
    page = page_of(operator, acme, call, "call-cancel")
    assert page.status_code == 409
    assert "It is Succeeded by now, and cannot be canceled." in text_of(page)
    address = address_of(acme.tenant_id, call, "call-cancel")
    assert operator.get(address, headers={"HX-Request": "true"}).status_code == 200


def test_it_goes_back_to_where_the_operator_was_and_to_no_other_site(operator: Client, acme: Tenant) -> None:
    call = submit(acme, due_at=after(60))
    here = address_of(acme.tenant_id, call)
    for given, kept in (
        (f"{here}?tab=events", f"{here}?tab=events"),
        ("//evil.test/", here),
        ("javascript:x", here),
    ):
        page = page_of(operator, acme, call, "call-cancel", next=given).content.decode()
        assert f'name="next" value="{kept}"' in page
    answer = post(operator, acme, call, "cancel", next=f"{here}?tab=events")
    assert (answer.status_code, answer["Location"]) == (303, f"{here}?tab=events")
    assert post(operator, acme, call, "tags", add="a", next="//evil.test/")["Location"] == here


# --- done ---------------------------------------------------------------------------------------------------------


def test_a_scheduled_call_is_canceled(operator: Client, acme: Tenant) -> None:
    call = submit(acme, due_at=after(60))
    answer = post(operator, acme, call, "cancel")
    assert answer["Location"] == address_of(acme.tenant_id, call)
    assert status_of(acme, call) == "Canceled"
    assert noted() == [("oscar", "cancel", str(call))]
    page = text_of(page_of(operator, acme, call))
    assert "Canceled." in page
    assert "What operators did" in page
    assert "oscar cancel" in page


def test_of_a_running_call_the_end_is_awaited(operator: Client, acme: Tenant, hand: Hand) -> None:
    call = submit(acme)
    hand.start_one()
    post(operator, acme, call, "cancel")
    assert (status_of(acme, call), call_of(acme, call).cancel_requested) == ("Running", True)
    assert "is let end, and no other is made" in text_of(page_of(operator, acme, call))


def test_a_call_is_run_now(operator: Client, acme: Tenant, at_noon: datetime) -> None:
    call = submit(acme, due_at=after(3600))
    post(operator, acme, call, "run-now")
    assert call_of(acme, call).due_at == at_noon
    assert noted() == [("oscar", "run-now", str(call))]


def test_a_call_is_rescheduled_to_the_instant_that_was_meant(
    operator: Client, acme: Tenant, at_noon: datetime
) -> None:
    call = submit(acme, due_at=after(3600))
    page = page_of(operator, acme, call, "call-reschedule").content.decode()
    assert 'value="2026-03-01"' in page
    assert 'value="13:00"' in page
    only_looked = post(operator, acme, call, "reschedule", do="when", **LATER)
    assert "Wed 1 Jul 2026, 12:30:00 UTC" in text_of(only_looked)
    assert call_of(acme, call).due_at == after(3600)
    post(operator, acme, call, "reschedule", **LATER)
    assert call_of(acme, call).due_at == datetime(2026, 7, 1, 12, 30, tzinfo=UTC)
    assert noted() == [("oscar", "reschedule", str(call))]
    assert "dueAt 2026-07-01T12:30:00.000Z" in text_of(page_of(operator, acme, call))


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({**LATER, "date": "2026-03-29", "time": "02:30"}, "02:30 does not exist on that day"),
        ({**LATER, "date": "2026-02-01"}, "That is past"),
        ({**LATER, "date": "2040-01-01"}, "must be within ten years"),
        ({**LATER, "date": ""}, "Choose a date"),
    ],
)
def test_a_time_that_cannot_be_is_asked_for_again(
    operator: Client, acme: Tenant, at_noon: datetime, chosen: dict[str, str], said: str
) -> None:
    call = submit(acme, due_at=after(3600))
    page = post(operator, acme, call, "reschedule", **chosen)
    assert said in text_of(page)
    assert f'value="{chosen["time"]}"' in page.content.decode()
    assert call_of(acme, call).due_at == after(3600)
    assert noted() == []


def test_a_replay_makes_one_new_call_however_often_it_is_sent(
    operator: Client, acme: Tenant, hand: Hand
) -> None:
    call = ended(hand, acme)
    page = page_of(operator, acme, call, "call-replay").content.decode()
    key = page.split('name="key" value="')[1].split('"')[0]
    first, second = (post(operator, acme, call, "replay", key=key) for _ in range(2))
    assert first["Location"] == second["Location"]
    origin, made = calls()
    assert first["Location"] == address_of(acme.tenant_id, made.service_call_id)
    assert (origin.service_call_id, made.replay_of) == (call, call)
    assert noted() == [("oscar", "submit", str(made.service_call_id)), ("oscar", "replay", str(call))]
    assert "This form was sent before" in text_of(operator.get(second["Location"]))
    other = page_of(operator, acme, call, "call-replay").content.decode()
    assert key not in other


def test_a_replay_needs_room(operator: Client, acme: Tenant, hand: Hand) -> None:
    call = ended(hand, acme)
    submit(acme, due_at=after(60))
    update_tenant(acme.tenant_id, max_pending=1)
    clear_profile_cache()
    admission.forget_allowances()
    post(operator, acme, call, "replay")
    assert "may have 1 calls pending" in text_of(page_of(operator, acme, call))
    assert len(calls()) == 2
    assert noted() == []


def test_a_replay_that_is_sent_again_needs_no_more_room(operator: Client, acme: Tenant, hand: Hand) -> None:
    call = ended(hand, acme)
    update_tenant(acme.tenant_id, max_pending=1)
    for _ in range(2):
        admission.forget_allowances()
        answer = post(operator, acme, call, "replay", key="same")
        assert answer["Location"] == address_of(acme.tenant_id, calls()[-1].service_call_id)
    assert len(calls()) == 2


def test_a_replay_for_a_tenant_that_is_not_active_is_refused(
    operator: Client, acme: Tenant, hand: Hand
) -> None:
    call = ended(hand, acme)
    update_tenant(acme.tenant_id, active=False)
    post(operator, acme, call, "replay", key="one")
    assert "This tenant is not active" in text_of(page_of(operator, acme, call))
    assert len(calls()) == 1
    assert noted() == []


def test_a_replay_with_a_damaged_key_is_refused(operator: Client, acme: Tenant, hand: Hand) -> None:
    call = ended(hand, acme)
    post(operator, acme, call, "replay", key="ü" * 300)
    assert "key of this form is damaged" in text_of(page_of(operator, acme, call))
    assert len(calls()) == 1


@pytest.mark.parametrize(
    ("action", "fields"),
    [("cancel", {}), ("run-now", {}), ("reschedule", LATER)],
)
def test_what_the_state_forbids_is_refused_with_the_reason(
    operator: Client, acme: Tenant, hand: Hand, action: str, fields: dict[str, str]
) -> None:
    call = ended(hand, acme)
    answer = post(operator, acme, call, action, **fields)
    if action == "reschedule":
        assert answer.status_code == 303
    assert "A call that is Succeeded cannot" in text_of(page_of(operator, acme, call))
    assert status_of(acme, call) == "Succeeded"
    assert noted() == []


def test_a_replay_of_what_has_not_ended_is_refused(operator: Client, acme: Tenant) -> None:
    call = submit(acme, due_at=after(60))
    post(operator, acme, call, "replay")
    assert "cannot replay: it must have ended" in text_of(page_of(operator, acme, call))
    assert len(calls()) == 1


# --- tags and the star --------------------------------------------------------------------------------------------


def test_the_star_is_put_on_and_taken_off(operator: Client, acme: Tenant) -> None:
    call = submit(acme, due_at=after(60))
    assert post(operator, acme, call, "favorite", on="1").status_code == 303
    assert tags_of(acme, call) == {"favorite"}
    part = operator.post(
        address_of(acme.tenant_id, call, "call-favorite"), {"on": "0"}, headers={"HX-Request": "true"}
    )
    assert part.status_code == 200
    assert 'name="on" value="1"' in part.content.decode()
    assert "<html" not in part.content.decode()
    assert tags_of(acme, call) == set()
    assert [action for _, action, _ in noted()] == ["favorite", "unfavorite"]


def test_tags_are_added_and_taken_off(operator: Client, acme: Tenant) -> None:
    call = submit(acme, due_at=after(60), tags=frozenset({"old"}))
    post(operator, acme, call, "tags", add=" new ")
    post(operator, acme, call, "tags", remove="old")
    assert tags_of(acme, call) == {"new"}
    assert [action for _, action, _ in noted()] == ["tag", "untag"]


def test_a_tag_that_is_there_or_is_not_is_not_noted_again(operator: Client, acme: Tenant) -> None:
    call = submit(acme, due_at=after(60), tags=frozenset({"here"}))
    post(operator, acme, call, "tags", add="here")
    assert "has this tag already" in text_of(page_of(operator, acme, call))
    post(operator, acme, call, "tags", remove="not-here")
    assert "has no such tag" in text_of(page_of(operator, acme, call))
    assert post(operator, acme, call, "favorite", on="0").status_code == 303
    assert tags_of(acme, call) == {"here"}
    assert noted() == []


@pytest.mark.parametrize("tag", ["", "t" * 65, "a\nb"])
def test_a_tag_that_is_none_is_refused(operator: Client, acme: Tenant, tag: str) -> None:
    call = submit(acme, due_at=after(60))
    post(operator, acme, call, "tags", add=tag)
    assert "The tag must" in text_of(page_of(operator, acme, call))
    assert tags_of(acme, call) == set()


# --- who may ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [*ACTIONS, "favorite", "tags"])
def test_a_viewer_may_neither_ask_nor_do(viewer: Client, acme: Tenant, action: str) -> None:
    call = submit(acme, due_at=after(60))
    before = call_of(acme, call)
    fields = {**LATER, "on": "1", "add": "t"}
    assert post(viewer, acme, call, action, **fields).status_code == 403
    if action in ACTIONS:
        assert page_of(viewer, acme, call, f"call-{action}").status_code == 403
    assert call_of(acme, call) == before
    assert call_of(acme, call).next_seq == before.next_seq
    assert tags_of(acme, call) == set()
    assert noted() == []


@pytest.mark.parametrize("action", [*ACTIONS, "favorite", "tags"])
def test_a_call_of_another_tenant_is_not_found_under_this_one(
    operator: Client, acme: Tenant, action: str
) -> None:
    other = create_tenant("other")
    call = submit(acme, due_at=after(60))
    fields = {**LATER, "on": "1", "add": "t"}
    assert post(operator, other, call, action, **fields).status_code == 404
    assert status_of(acme, call) == "Scheduled"
    assert noted() == []


def test_the_same_id_in_another_tenant_has_its_own_story(operator: Client, acme: Tenant) -> None:
    other = create_tenant("other")
    call = submit(acme, due_at=after(60))
    submit(other, due_at=after(60), service_call_id=call)
    post(operator, acme, call, "cancel")
    assert status_of(other, call) == "Scheduled"
    page_of(operator, acme, call)
    assert "What operators did" not in text_of(page_of(operator, other, call))


def test_without_a_token_nothing_is_done(operator: Client, acme: Tenant) -> None:
    call = submit(acme, due_at=after(60))
    operator.handler.enforce_csrf_checks = True
    assert post(operator, acme, call, "cancel").status_code == 403
    assert status_of(acme, call) == "Scheduled"


def test_time_that_passes_between_question_and_answer_is_no_harm(
    operator: Client, acme: Tenant, at_noon: datetime
) -> None:
    call = submit(acme, due_at=after(60))
    page_of(operator, acme, call, "call-run-now")
    with pin_time(after(120)):
        post(operator, acme, call, "run-now")
        assert call_of(acme, call).due_at == after(120)

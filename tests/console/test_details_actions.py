"""Actions on a call are offered if its state allows, confirmed, done once, recorded, and refused with a reason."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from eventservice.db.now import pin_time
from eventservice.kernel.ttl_cache import clear_caches
from eventservice.operators.models import OperatorAction
from eventservice.tenants.directory import create_tenant, update_tenant
from eventservice.tenants.models import Tenant
from orchestration import admission, lifecycle
from orchestration.models import ServiceCallTag
from tests.console.call_pages import BROWSER, build_call_url, list_calls, read_text
from tests.orchestration.support import (
    ManualEngine,
    add_to_noon,
    build_error,
    build_response,
    get_call,
    get_status,
    submit,
)

pytestmark = pytest.mark.django_db
ACTIONS = ("cancel", "reschedule", "run-now", "replay")
LATER = {"date": "2026-07-01", "time": "14:30", "zone": "Europe/Berlin"}


@pytest.fixture(autouse=True)
def acme(db: None) -> Tenant:
    admission.forget_allowances()
    return create_tenant("acme")


def post(client: Client, tenant: Tenant, call: Any, action: str, **fields: Any) -> Any:
    return client.post(build_call_url(tenant.tenant_id, call, f"call-{action}"), fields, headers=BROWSER)


def get_page(client: Client, tenant: Tenant, call: Any, name: str = "call", **query: str) -> Any:
    return client.get(build_call_url(tenant.tenant_id, call, name), query, headers=BROWSER)


def list_actions() -> list[tuple[str, str, str]]:
    actions = OperatorAction.across_tenants.order_by("id")
    return [(action.user, action.action, action.subject) for action in actions]


def read_tags(tenant: Tenant, call: Any) -> set[str]:
    tags = ServiceCallTag.objects.for_tenant(tenant.tenant_id).filter(service_call_id=call)
    return set(tags.values_list("tag", flat=True))


def end_call(manual_engine: ManualEngine, tenant: Tenant, **terms: Any) -> uuid.UUID:
    call = submit(tenant, **terms)
    started = manual_engine.start_one()
    manual_engine.finish((started, build_response(started)))
    return call


# --- offers and confirmations -------------------------------------------------------------------------------------------


def list_offered(client: Client, tenant: Tenant, call: Any) -> set[str]:
    page = get_page(client, tenant, call).content.decode()
    return {a for a in ACTIONS if build_call_url(tenant.tenant_id, call, f"call-{a}") in page}


def test_the_offered_actions_are_those_that_the_state_allows(
    operator: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = submit(acme)
    assert list_offered(operator, acme, call) == {"cancel", "reschedule", "run-now"}
    started = manual_engine.start_one()
    assert list_offered(operator, acme, call) == {"cancel"}
    lifecycle.cancel(acme.tenant_id, call)
    assert list_offered(operator, acme, call) == set()
    assert "Cancellation requested" in read_text(get_page(operator, acme, call))
    manual_engine.finish((started, build_error(started)))
    assert list_offered(operator, acme, call) == {"replay"}


def test_each_action_is_confirmed_with_what_it_will_do(
    operator: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    done, waiting = end_call(manual_engine, acme), submit(acme, due_at=add_to_noon(60))
    replay = read_text(get_page(operator, acme, done, "call-replay"))
    assert "Replaying creates a new call, due now: POST http://target.test/hook with the same" in replay
    assert "POST http://target.test/hook will not be sent" in read_text(
        get_page(operator, acme, waiting, "call-cancel")
    )
    run_now = read_text(get_page(operator, acme, waiting, "call-run-now"))
    assert "will be sent now instead of at 2026-03-01 12:01:00 UTC" in run_now
    assert len(list_calls()) == 2
    assert list_actions() == []


def test_a_confirmation_that_is_too_late_says_so(
    operator: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = end_call(manual_engine, acme)
    page = get_page(operator, acme, call, "call-cancel")
    assert page.status_code == 409
    assert "This call is now Succeeded and can no longer be canceled." in read_text(page)
    address = build_call_url(acme.tenant_id, call, "call-cancel")
    assert operator.get(address, headers={"HX-Request": "true"}).status_code == 200


def test_an_action_returns_to_its_page_and_to_no_other_site(operator: Client, acme: Tenant) -> None:
    call = submit(acme, due_at=add_to_noon(60))
    here = build_call_url(acme.tenant_id, call)
    for given, kept in (
        (f"{here}?tab=events", f"{here}?tab=events"),
        ("//evil.test/", here),
        ("javascript:x", here),
    ):
        page = get_page(operator, acme, call, "call-cancel", next=given).content.decode()
        assert f'name="next" value="{kept}"' in page
    answer = post(operator, acme, call, "cancel", next=f"{here}?tab=events")
    assert (answer.status_code, answer["Location"]) == (303, f"{here}?tab=events")
    assert post(operator, acme, call, "tags", add="a", next="//evil.test/")["Location"] == here


# --- actions ---------------------------------------------------------------------------------------------------------


def test_a_scheduled_call_is_canceled(operator: Client, acme: Tenant) -> None:
    call = submit(acme, due_at=add_to_noon(60))
    answer = post(operator, acme, call, "cancel")
    assert answer["Location"] == build_call_url(acme.tenant_id, call)
    assert get_status(acme, call) == "Canceled"
    assert list_actions() == [("oscar", "cancel", str(call))]
    page = read_text(get_page(operator, acme, call))
    assert "Call canceled." in page
    assert "oscar cancel" in page


def test_canceling_a_running_call_waits_for_its_attempt(
    operator: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = submit(acme)
    manual_engine.start_one()
    post(operator, acme, call, "cancel")
    assert (get_status(acme, call), get_call(acme, call).cancel_requested) == ("Running", True)
    assert "The running attempt may finish; no further attempts will be made." in read_text(
        get_page(operator, acme, call)
    )


def test_a_call_is_run_now(operator: Client, acme: Tenant, at_noon: datetime) -> None:
    call = submit(acme, due_at=add_to_noon(3600))
    post(operator, acme, call, "run-now")
    assert get_call(acme, call).due_at == at_noon
    assert list_actions() == [("oscar", "run-now", str(call))]


def test_a_call_is_rescheduled_to_the_chosen_instant(
    operator: Client, acme: Tenant, at_noon: datetime
) -> None:
    call = submit(acme, due_at=add_to_noon(3600))
    page = get_page(operator, acme, call, "call-reschedule").content.decode()
    assert 'value="2026-03-01"' in page
    assert 'value="13:00"' in page
    preview = post(operator, acme, call, "reschedule", do="when", **LATER)
    assert "Wed 2026-07-01 12:30:00 UTC" in read_text(preview)
    assert get_call(acme, call).due_at == add_to_noon(3600)
    post(operator, acme, call, "reschedule", **LATER)
    assert get_call(acme, call).due_at == datetime(2026, 7, 1, 12, 30, tzinfo=UTC)
    assert list_actions() == [("oscar", "reschedule", str(call))]
    assert "dueAt 2026-07-01T12:30:00.000Z" in read_text(get_page(operator, acme, call))


def test_a_preset_is_shown_before_the_call_is_rescheduled(
    operator: Client, acme: Tenant, at_noon: datetime
) -> None:
    call = submit(acme, due_at=add_to_noon(3600))
    page = post(operator, acme, call, "reschedule", preset="10m", **LATER)
    assert "in 10 m , Sun 2026-03-01 12:10:00 UTC" in read_text(page)
    page = post(operator, acme, call, "reschedule", preset="in", amount="-1", **LATER)
    assert "Enter a whole number from 1 to 9999." in read_text(page)
    assert get_call(acme, call).due_at == add_to_noon(3600)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({**LATER, "date": "2026-03-29", "time": "02:30"}, "02:30 does not exist on this day"),
        ({**LATER, "date": "2026-02-01"}, "This time is in the past"),
        ({**LATER, "date": "2040-01-01"}, "must be within ten years"),
        ({**LATER, "date": ""}, "Choose a date"),
    ],
)
def test_an_invalid_time_can_be_corrected(
    operator: Client, acme: Tenant, at_noon: datetime, chosen: dict[str, str], message: str
) -> None:
    call = submit(acme, due_at=add_to_noon(3600))
    page = post(operator, acme, call, "reschedule", **chosen)
    assert message in read_text(page)
    assert f'value="{chosen["time"]}"' in page.content.decode()
    assert get_call(acme, call).due_at == add_to_noon(3600)
    assert list_actions() == []


def test_the_question_says_that_a_replay_of_a_timers_call_is_no_timer(
    operator: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = submit(acme, external_id="order-1")
    manual_engine.finish(*((one, build_response(one)) for one in manual_engine.start()))
    assert "it is not a durable timer" in read_text(get_page(operator, acme, call, "call-replay"))


def test_a_replay_creates_one_call_however_often_it_is_sent(
    operator: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = end_call(manual_engine, acme)
    page = get_page(operator, acme, call, "call-replay").content.decode()
    key = page.split('name="key" value="')[1].split('"')[0]
    first, second = (post(operator, acme, call, "replay", key=key) for _ in range(2))
    assert first["Location"] == second["Location"]
    origin, made = list_calls()
    assert first["Location"] == build_call_url(acme.tenant_id, made.service_call_id)
    assert (origin.service_call_id, made.replay_of) == (call, call)
    assert list_actions() == [("oscar", "submit", str(made.service_call_id)), ("oscar", "replay", str(call))]
    assert "This form was already sent" in read_text(operator.get(second["Location"]))
    other = get_page(operator, acme, call, "call-replay").content.decode()
    assert key not in other


def test_a_replay_respects_the_pending_limit(
    operator: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = end_call(manual_engine, acme)
    submit(acme, due_at=add_to_noon(60))
    update_tenant(acme.tenant_id, max_pending=1)
    clear_caches()
    admission.forget_allowances()
    post(operator, acme, call, "replay")
    assert "pending limit of this tenant is 1." in read_text(get_page(operator, acme, call))
    assert len(list_calls()) == 2
    assert list_actions() == []


def test_a_repeated_replay_does_not_count_against_the_pending_limit(
    operator: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = end_call(manual_engine, acme)
    update_tenant(acme.tenant_id, max_pending=1)
    for _ in range(2):
        admission.forget_allowances()
        answer = post(operator, acme, call, "replay", key="same")
        assert answer["Location"] == build_call_url(acme.tenant_id, list_calls()[-1].service_call_id)
    assert len(list_calls()) == 2


def test_a_replay_for_an_inactive_tenant_is_refused(
    operator: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = end_call(manual_engine, acme)
    update_tenant(acme.tenant_id, active=False)
    post(operator, acme, call, "replay", key="one")
    assert "This tenant is not active" in read_text(get_page(operator, acme, call))
    assert len(list_calls()) == 1
    assert list_actions() == []


def test_a_replay_with_a_damaged_key_is_refused(
    operator: Client, acme: Tenant, manual_engine: ManualEngine
) -> None:
    call = end_call(manual_engine, acme)
    post(operator, acme, call, "replay", key="ü" * 300)
    assert "The form is damaged" in read_text(get_page(operator, acme, call))
    assert len(list_calls()) == 1


@pytest.mark.parametrize(
    ("action", "fields"),
    [("cancel", {}), ("run-now", {}), ("reschedule", LATER)],
)
def test_an_action_that_the_state_forbids_is_refused_with_the_reason(
    operator: Client, acme: Tenant, manual_engine: ManualEngine, action: str, fields: dict[str, str]
) -> None:
    call = end_call(manual_engine, acme)
    answer = post(operator, acme, call, action, **fields)
    if action == "reschedule":
        assert answer.status_code == 303
    assert "A call that is Succeeded cannot" in read_text(get_page(operator, acme, call))
    assert get_status(acme, call) == "Succeeded"
    assert list_actions() == []


def test_a_replay_of_a_live_call_is_refused(operator: Client, acme: Tenant) -> None:
    call = submit(acme, due_at=add_to_noon(60))
    post(operator, acme, call, "replay")
    assert "cannot be replayed: it must have ended" in read_text(get_page(operator, acme, call))
    assert len(list_calls()) == 1


# --- tags and favorites --------------------------------------------------------------------------------------------


def test_a_favorite_is_added_and_removed(operator: Client, acme: Tenant) -> None:
    call = submit(acme, due_at=add_to_noon(60))
    assert post(operator, acme, call, "favorite", on="1").status_code == 303
    assert read_tags(acme, call) == {"favorite"}
    part = operator.post(
        build_call_url(acme.tenant_id, call, "call-favorite"), {"on": "0"}, headers={"HX-Request": "true"}
    )
    assert part.status_code == 200
    assert 'name="on" value="1"' in part.content.decode()
    assert "<html" not in part.content.decode()
    assert read_tags(acme, call) == set()
    assert [action for _, action, _ in list_actions()] == ["favorite", "unfavorite"]


def test_tags_are_added_and_removed(operator: Client, acme: Tenant) -> None:
    call = submit(acme, due_at=add_to_noon(60), tags=frozenset({"old"}))
    post(operator, acme, call, "tags", add=" new ")
    assert "Tag added." in read_text(get_page(operator, acme, call))
    post(operator, acme, call, "tags", remove="old")
    assert "Tag removed." in read_text(get_page(operator, acme, call))
    assert read_tags(acme, call) == {"new"}
    assert [action for _, action, _ in list_actions()] == ["tag", "untag"]


def test_a_tag_action_that_changes_nothing_is_not_recorded(operator: Client, acme: Tenant) -> None:
    call = submit(acme, due_at=add_to_noon(60), tags=frozenset({"here"}))
    post(operator, acme, call, "tags", add="here")
    assert "already has this tag" in read_text(get_page(operator, acme, call))
    post(operator, acme, call, "tags", remove="not-here")
    assert "does not have this tag" in read_text(get_page(operator, acme, call))
    assert post(operator, acme, call, "favorite", on="0").status_code == 303
    assert read_tags(acme, call) == {"here"}
    assert list_actions() == []


@pytest.mark.parametrize("tag", ["", "t" * 65, "a\nb"])
def test_an_invalid_tag_is_refused(operator: Client, acme: Tenant, tag: str) -> None:
    call = submit(acme, due_at=add_to_noon(60))
    post(operator, acme, call, "tags", add=tag)
    assert "The tag must" in read_text(get_page(operator, acme, call))
    assert read_tags(acme, call) == set()


# --- permissions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [*ACTIONS, "favorite", "tags"])
def test_a_viewer_can_neither_preview_nor_act(viewer: Client, acme: Tenant, action: str) -> None:
    call = submit(acme, due_at=add_to_noon(60))
    before = get_call(acme, call)
    fields = {**LATER, "on": "1", "add": "t"}
    assert post(viewer, acme, call, action, **fields).status_code == 403
    if action in ACTIONS:
        assert get_page(viewer, acme, call, f"call-{action}").status_code == 403
    assert get_call(acme, call) == before
    assert get_call(acme, call).next_seq == before.next_seq
    assert read_tags(acme, call) == set()
    assert list_actions() == []


@pytest.mark.parametrize("action", [*ACTIONS, "favorite", "tags"])
def test_a_call_is_not_found_under_another_tenant(operator: Client, acme: Tenant, action: str) -> None:
    other = create_tenant("other")
    call = submit(acme, due_at=add_to_noon(60))
    fields = {**LATER, "on": "1", "add": "t"}
    assert post(operator, other, call, action, **fields).status_code == 404
    assert get_status(acme, call) == "Scheduled"
    assert list_actions() == []


def test_the_same_id_in_another_tenant_has_its_own_history(operator: Client, acme: Tenant) -> None:
    other = create_tenant("other")
    call = submit(acme, due_at=add_to_noon(60))
    submit(other, due_at=add_to_noon(60), service_call_id=call)
    post(operator, acme, call, "cancel")
    assert get_status(other, call) == "Scheduled"
    get_page(operator, acme, call)
    assert "<h2>Audit log</h2>" not in get_page(operator, other, call).content.decode()


def test_nothing_happens_without_a_csrf_token(operator: Client, acme: Tenant) -> None:
    call = submit(acme, due_at=add_to_noon(60))
    operator.handler.enforce_csrf_checks = True
    assert post(operator, acme, call, "cancel").status_code == 403
    assert get_status(acme, call) == "Scheduled"


def test_time_may_pass_between_confirmation_and_action(
    operator: Client, acme: Tenant, at_noon: datetime
) -> None:
    call = submit(acme, due_at=add_to_noon(60))
    get_page(operator, acme, call, "call-run-now")
    with pin_time(add_to_noon(120)):
        post(operator, acme, call, "run-now")
        assert get_call(acme, call).due_at == add_to_noon(120)

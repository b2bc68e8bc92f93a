"""An action of the admin runs the domain's command for each row: confirmed, recorded, and reported row by row."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from eventservice.adminsite import actions
from eventservice.db.now import db_now
from eventservice.operators.models import OperatorAction
from eventservice.tenants.directory import declare_namespace, update_tenant
from eventservice.tenants.keys import create_key
from eventservice.tenants.models import DEFAULT_NAMESPACE, ApiKey, Tenant
from orchestration import lifecycle
from orchestration.admission import forget_allowances
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.models import ServiceCall, ServiceCallTag
from outbox.models import OutboxEvent
from tests.console.admin_pages import build_list_url, build_page_url, read_messages, read_page, run_action
from tests.factories import OutboxEventFactory, set_status
from timers.models import TimerShard

CALLS = "orchestration_servicecall"
EVENTS = "outbox_outboxevent"


def submit_calls(tenant: Tenant, count: int, name: str = "call") -> list[Any]:
    declare_namespace(tenant.pk, DEFAULT_NAMESPACE, 1)
    lifecycle.submit(
        [
            SubmitServiceCall(
                tenant_id=tenant.pk,
                name=name,
                request=RequestSpec("POST", "http://example.test/", {}, None),
            )
            for _ in range(count)
        ]
    )
    return list(ServiceCall.objects.for_tenant(tenant.pk).filter(name=name))


def list_statuses(tenant: Tenant) -> list[str]:
    return sorted(ServiceCall.objects.for_tenant(tenant.pk).values_list("status", flat=True))


def list_audit_entries() -> list[tuple[str, str, str]]:
    rows = OperatorAction.across_tenants.order_by("id")
    return [(row.user, row.action, row.subject) for row in rows]


def test_canceling_is_confirmed_with_the_calls_that_it_affects(operator: Client, tenant: Tenant) -> None:
    calls = submit_calls(tenant, 2)
    page = read_page(run_action(operator, CALLS, "cancel", calls, confirmed=""))
    assert "Cancel 2 service calls?" in page
    assert "Scheduled calls are canceled." in page
    assert all(str(call) in page for call in calls)
    assert list_statuses(tenant) == ["Scheduled", "Scheduled"]
    assert list_audit_entries() == []


def test_each_row_is_reported_as_done_or_refused(operator: Client, tenant: Tenant) -> None:
    calls = submit_calls(tenant, 3)
    lifecycle.cancel(tenant.pk, calls[0].service_call_id)
    response = run_action(operator, CALLS, "cancel", calls)
    refusal = "A call that is Canceled cannot be canceled: it must be Scheduled or Running."
    assert read_messages(response) == [f"2 canceled, 1 refused: “{refusal}”"]
    assert list_statuses(tenant) == ["Canceled"] * 3


def test_the_audit_log_has_what_was_done_and_not_what_was_refused(operator: Client, tenant: Tenant) -> None:
    calls = submit_calls(tenant, 2)
    lifecycle.cancel(tenant.pk, calls[0].service_call_id)
    run_action(operator, CALLS, "cancel", calls)
    assert list_audit_entries() == [("oscar", "cancel", str(calls[1].service_call_id))]
    assert OperatorAction.objects.for_tenant(tenant.pk).count() == 1
    assert "oscar" in read_page(operator.get(build_page_url(CALLS, calls[1], "history")))


def test_a_replay_creates_a_new_call_and_leaves_the_old_one(operator: Client, tenant: Tenant) -> None:
    ended, live = submit_calls(tenant, 2)
    lifecycle.cancel(tenant.pk, ended.service_call_id)
    response = run_action(operator, CALLS, "replay", [ended, live])
    assert read_messages(response)[0].startswith(
        "1 replayed as new calls, 1 refused: “A call that is Scheduled"
    )
    made = ServiceCall.objects.for_tenant(tenant.pk).get(replay_of=ended.service_call_id)
    assert list_statuses(tenant) == ["Canceled", "Scheduled", "Scheduled"]
    assert ("oscar", "submit", str(made.service_call_id)) in list_audit_entries()


def failed(tenant: Tenant) -> Any:
    (call,) = submit_calls(tenant, 1)
    set_status(ServiceCall.objects.for_tenant(tenant.pk), "Failed")
    return call


def replays(tenant: Tenant) -> int:
    return ServiceCall.objects.for_tenant(tenant.pk).exclude(replay_of=None).count()


def test_a_failed_call_is_not_replayed_a_second_time(operator: Client, tenant: Tenant) -> None:
    call = failed(tenant)
    run_action(operator, CALLS, "replay", [call], confirmed="one-page")
    again = read_messages(run_action(operator, CALLS, "replay", [call], confirmed="another"))
    assert again == ["1 refused: “It has been replayed before.”"]
    assert replays(tenant) == 1
    assert [action for _, action, _ in list_audit_entries()] == ["submit", "replay"]


def test_a_confirmation_that_is_sent_twice_replays_once(operator: Client, tenant: Tenant) -> None:
    (call,) = submit_calls(tenant, 1)
    lifecycle.cancel(tenant.pk, call.service_call_id)
    run_action(operator, CALLS, "replay", [call], confirmed="one-page")
    again = read_messages(run_action(operator, CALLS, "replay", [call], confirmed="one-page"))
    assert again == ["1 refused: “It has been replayed before.”"]
    assert [action for _, action, _ in list_audit_entries()] == ["submit", "replay"]
    run_action(operator, CALLS, "replay", [call], confirmed="another-page")
    assert replays(tenant) == 2


def test_each_confirmation_page_has_its_own_key(operator: Client, tenant: Tenant) -> None:
    calls = submit_calls(tenant, 1)
    pages = [read_page(run_action(operator, CALLS, "replay", calls, confirmed="")) for _ in range(2)]
    first, second = (re.search(r'name="confirmed" value="([^"]+)"', page) for page in pages)
    assert first
    assert second
    assert first[1] != second[1]
    assert "console/once.js" in pages[0]


def test_a_replay_for_an_inactive_tenant_is_refused(operator: Client, tenant: Tenant) -> None:
    call = failed(tenant)
    update_tenant(tenant.pk, active=False)
    assert "This tenant is not active" in read_messages(run_action(operator, CALLS, "replay", [call]))[0]
    assert replays(tenant) == 0


def test_a_replay_respects_the_pending_limit(operator: Client, tenant: Tenant) -> None:
    (call,) = submit_calls(tenant, 1)
    lifecycle.cancel(tenant.pk, call.service_call_id)
    update_tenant(tenant.pk, max_pending=0)
    forget_allowances()
    assert (
        "pending limit of this tenant is 0."
        in read_messages(run_action(operator, CALLS, "replay", [call]))[0]
    )
    assert list_statuses(tenant) == ["Canceled"]


def test_run_now_makes_a_call_due_now(operator: Client, tenant: Tenant, at_noon: Any) -> None:
    (call,) = submit_calls(tenant, 1)
    lifecycle.reschedule(tenant.pk, call.service_call_id, at_noon.replace(year=2027))
    assert read_messages(run_action(operator, CALLS, "run-now", [call])) == ["1 due now"]
    assert ServiceCall.objects.for_tenant(tenant.pk).get().due_at == at_noon


def test_a_favorite_needs_no_confirmation(operator: Client, tenant: Tenant) -> None:
    calls = submit_calls(tenant, 2)
    assert read_messages(run_action(operator, CALLS, "favorite", calls, confirmed="")) == [
        "2 added to favorites"
    ]
    assert ServiceCallTag.objects.for_tenant(tenant.pk).filter(tag="favorite").count() == 2
    again = read_messages(run_action(operator, CALLS, "favorite", calls, confirmed=""))
    assert again == ["2 refused: “It is already a favorite.”"]
    assert len(list_audit_entries()) == 2


def test_without_rows_or_an_action_nothing_changes(operator: Client, tenant: Tenant) -> None:
    calls = submit_calls(tenant, 1)
    assert "must be selected" in read_messages(run_action(operator, CALLS, "cancel", [], confirmed=""))[0]
    assert read_messages(run_action(operator, CALLS, "", calls, confirmed="")) == ["Choose an action."]
    assert list_statuses(tenant) == ["Scheduled"]


def test_a_row_that_was_deleted_is_reported(operator: Client, tenant: Tenant) -> None:
    one, other = submit_calls(tenant, 2)
    lifecycle.delete(tenant.pk, other.service_call_id)
    assert read_messages(run_action(operator, CALLS, "cancel", [one, other])) == [
        "1 canceled, 1 no longer exist"
    ]


def test_all_matching_rows_are_changed_up_to_a_limit(
    operator: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventservice.adminsite.model_admin.MAX_ROWS", 3)
    monkeypatch.setattr(actions, "MAX_ROWS", 3)
    calls = submit_calls(tenant, 5)
    data = {"action": "cancel", "index": "0", "select_across": "1", "_selected_action": "x"}
    page = read_page(operator.post(build_list_url(CALLS), data))
    assert "Cancel 3 service calls?" in page
    assert "These are the first 3 of 5" in page
    chosen = [call for call in calls if f'value="{call.tenant_id}~{call.service_call_id}"' in page]
    assert len(chosen) == 3
    assert read_messages(run_action(operator, CALLS, "cancel", calls)) == ["3 canceled"]
    assert list_statuses(tenant) == ["Canceled"] * 3 + ["Scheduled"] * 2


def test_all_matching_rows_are_those_that_pass_the_filters(
    operator: Client, tenant: Tenant, intruder: Tenant
) -> None:
    submit_calls(tenant, 2, "one")
    submit_calls(tenant, 1, "two")
    submit_calls(intruder, 1, "one")
    data = {"action": "cancel", "index": "0", "select_across": "1", "_selected_action": "x"}
    page = read_page(operator.post(build_list_url(CALLS, tenant=tenant.pk, q="one"), data))
    assert "Cancel 2 service calls?" in page


def test_more_rows_than_sqlite_accepts_in_one_expression_are_found(operator: Client, tenant: Tenant) -> None:
    calls = submit_calls(tenant, actions.MAX_ROWS)
    page = read_page(run_action(operator, CALLS, "cancel", calls, confirmed=""))
    assert f"Cancel {actions.MAX_ROWS} service calls?" in page
    assert "and 490 more" in page


@pytest.fixture
def stuck_event(tenant: Tenant) -> Any:
    moment = db_now()
    return OutboxEventFactory(tenant_id=tenant.pk, parked_at=moment, attempts=5, last_error="no")


def test_a_parked_event_is_retried_and_another_is_refused(operator: Client, stuck_event: Any) -> None:
    flowing = OutboxEventFactory(tenant_id=stuck_event.tenant_id)
    response = run_action(operator, EVENTS, "event-retry", [stuck_event, flowing])
    assert read_messages(response)[0].startswith("1 to be retried, 1 refused: “It is not parked")
    assert OutboxEvent.objects.for_tenant(stuck_event.tenant_id).filter(parked_at=None).count() == 2
    assert list_audit_entries() == [("oscar", "event-retry", str(stuck_event.pk))]


def test_a_parked_event_is_skipped(operator: Client, stuck_event: Any) -> None:
    assert read_messages(run_action(operator, EVENTS, "event-skip", [stuck_event])) == ["1 skipped"]
    stuck_event.refresh_from_db()
    assert stuck_event.published_at is not None


def test_only_an_admin_revokes_keys(operator: Client, admin: Client, tenant: Tenant) -> None:
    key, _ = create_key(tenant.pk, ["read"])
    assert run_action(operator, "tenants_apikey", "key-revoke", [key]).status_code == 403
    assert ApiKey.objects.for_tenant(tenant.pk).get().revoked_at is None
    assert read_messages(run_action(admin, "tenants_apikey", "key-revoke", [key])) == ["1 revoked"]
    assert ApiKey.objects.for_tenant(tenant.pk).get().revoked_at is not None
    assert "1 refused" in read_messages(run_action(admin, "tenants_apikey", "key-revoke", [key]))[0]
    assert list_audit_entries() == [("ada", "key-revoke", key.key_id)]


def test_a_history_shows_nothing_of_other_models_with_the_same_number(
    admin: Client, stuck_event: Any
) -> None:
    run_action(admin, EVENTS, "event-skip", [stuck_event])
    shard = TimerShard.objects.create(shard_id=stuck_event.pk)
    assert "event-skip" in read_page(admin.get(build_page_url(EVENTS, stuck_event, "history")))
    assert "event-skip" not in read_page(admin.get(build_page_url("timers_timershard", shard, "history")))

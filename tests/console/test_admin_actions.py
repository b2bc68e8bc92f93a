"""An action of the admin is the domain's command for each row: asked first, in the audit log, told as it went."""

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
from tests.console.admin_pages import act_on, list_of, page_of, shown, told
from tests.factories import OutboxEventFactory
from timers.models import TimerShard

CALLS = "orchestration_servicecall"
EVENTS = "outbox_outboxevent"


def submitted(tenant: Tenant, count: int, name: str = "call") -> list[Any]:
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


def statuses(tenant: Tenant) -> list[str]:
    return sorted(ServiceCall.objects.for_tenant(tenant.pk).values_list("status", flat=True))


def list_audit_entries() -> list[tuple[str, str, str]]:
    rows = OperatorAction.across_tenants.order_by("id")
    return [(row.user, row.action, row.subject) for row in rows]


def test_canceling_asks_first_and_says_what_it_will_touch(operator: Client, tenant: Tenant) -> None:
    calls = submitted(tenant, 2)
    page = shown(act_on(operator, CALLS, "cancel", calls, confirmed=""))
    assert "Cancel 2 service calls?" in page
    assert "Scheduled calls are canceled." in page
    assert all(str(call) in page for call in calls)
    assert statuses(tenant) == ["Scheduled", "Scheduled"]
    assert list_audit_entries() == []


def test_what_was_done_and_what_was_refused_is_told_for_each(operator: Client, tenant: Tenant) -> None:
    calls = submitted(tenant, 3)
    lifecycle.cancel(tenant.pk, calls[0].service_call_id)
    response = act_on(operator, CALLS, "cancel", calls)
    refusal = "A call that is Canceled cannot be canceled: it must be Scheduled."
    assert told(response) == [f"2 canceled, 1 refused: “{refusal}”"]
    assert statuses(tenant) == ["Canceled"] * 3


def test_what_was_done_is_in_the_audit_log_and_what_was_refused_is_not(
    operator: Client, tenant: Tenant
) -> None:
    calls = submitted(tenant, 2)
    lifecycle.cancel(tenant.pk, calls[0].service_call_id)
    act_on(operator, CALLS, "cancel", calls)
    assert list_audit_entries() == [("oscar", "cancel", str(calls[1].service_call_id))]
    assert OperatorAction.objects.for_tenant(tenant.pk).count() == 1
    assert "oscar" in shown(operator.get(page_of(CALLS, calls[1], "history")))


def test_a_replay_makes_a_new_call_and_leaves_the_old(operator: Client, tenant: Tenant) -> None:
    ended, live = submitted(tenant, 2)
    lifecycle.cancel(tenant.pk, ended.service_call_id)
    response = act_on(operator, CALLS, "replay", [ended, live])
    assert told(response)[0].startswith("1 replayed as new calls, 1 refused: “A call that is Scheduled")
    made = ServiceCall.objects.for_tenant(tenant.pk).get(replay_of=ended.service_call_id)
    assert statuses(tenant) == ["Canceled", "Scheduled", "Scheduled"]
    assert ("oscar", "submit", str(made.service_call_id)) in list_audit_entries()


def failed(tenant: Tenant) -> Any:
    (call,) = submitted(tenant, 1)
    ServiceCall.objects.for_tenant(tenant.pk).update(status="Failed")
    return call


def replays(tenant: Tenant) -> int:
    return ServiceCall.objects.for_tenant(tenant.pk).exclude(replay_of=None).count()


def test_a_failed_call_is_not_replayed_a_second_time(operator: Client, tenant: Tenant) -> None:
    call = failed(tenant)
    act_on(operator, CALLS, "replay", [call], confirmed="one-page")
    again = told(act_on(operator, CALLS, "replay", [call], confirmed="another"))
    assert again == ["1 refused: “It has been replayed before.”"]
    assert replays(tenant) == 1
    assert [action for _, action, _ in list_audit_entries()] == ["submit", "replay"]


def test_a_page_that_is_sent_twice_replays_once(operator: Client, tenant: Tenant) -> None:
    (call,) = submitted(tenant, 1)
    lifecycle.cancel(tenant.pk, call.service_call_id)
    act_on(operator, CALLS, "replay", [call], confirmed="one-page")
    again = told(act_on(operator, CALLS, "replay", [call], confirmed="one-page"))
    assert again == ["1 refused: “It has been replayed before.”"]
    assert [action for _, action, _ in list_audit_entries()] == ["submit", "replay"]
    act_on(operator, CALLS, "replay", [call], confirmed="another-page")
    assert replays(tenant) == 2


def test_each_page_that_asks_is_another_and_is_sent_once(operator: Client, tenant: Tenant) -> None:
    calls = submitted(tenant, 1)
    pages = [shown(act_on(operator, CALLS, "replay", calls, confirmed="")) for _ in range(2)]
    first, second = (re.search(r'name="confirmed" value="([^"]+)"', page) for page in pages)
    assert first
    assert second
    assert first[1] != second[1]
    assert "console/once.js" in pages[0]


def test_a_replay_for_a_tenant_that_is_not_active_is_refused(operator: Client, tenant: Tenant) -> None:
    call = failed(tenant)
    update_tenant(tenant.pk, active=False)
    assert "This tenant is not active" in told(act_on(operator, CALLS, "replay", [call]))[0]
    assert replays(tenant) == 0


def test_a_replay_keeps_to_the_tenants_ceiling(operator: Client, tenant: Tenant) -> None:
    (call,) = submitted(tenant, 1)
    lifecycle.cancel(tenant.pk, call.service_call_id)
    update_tenant(tenant.pk, max_pending=0)
    forget_allowances()
    assert "may have 0 calls pending" in told(act_on(operator, CALLS, "replay", [call]))[0]
    assert statuses(tenant) == ["Canceled"]


def test_running_now_makes_it_due_now(operator: Client, tenant: Tenant, at_noon: Any) -> None:
    (call,) = submitted(tenant, 1)
    lifecycle.reschedule(tenant.pk, call.service_call_id, at_noon.replace(year=2027))
    assert told(act_on(operator, CALLS, "run-now", [call])) == ["1 due now"]
    assert ServiceCall.objects.for_tenant(tenant.pk).get().due_at == at_noon


def test_a_favorite_is_harmless_and_needs_no_question(operator: Client, tenant: Tenant) -> None:
    calls = submitted(tenant, 2)
    assert told(act_on(operator, CALLS, "favorite", calls, confirmed="")) == ["2 added to favorites"]
    assert ServiceCallTag.objects.for_tenant(tenant.pk).filter(tag="favorite").count() == 2
    again = told(act_on(operator, CALLS, "favorite", calls, confirmed=""))
    assert again == ["2 refused: “It is already a favorite.”"]
    assert len(list_audit_entries()) == 2


def test_nothing_chosen_and_no_action_change_nothing(operator: Client, tenant: Tenant) -> None:
    calls = submitted(tenant, 1)
    assert "must be selected" in told(act_on(operator, CALLS, "cancel", [], confirmed=""))[0]
    assert told(act_on(operator, CALLS, "", calls, confirmed="")) == ["Choose an action."]
    assert statuses(tenant) == ["Scheduled"]


def test_a_row_that_is_gone_is_told(operator: Client, tenant: Tenant) -> None:
    one, other = submitted(tenant, 2)
    lifecycle.delete(tenant.pk, other.service_call_id)
    assert told(act_on(operator, CALLS, "cancel", [one, other])) == ["1 canceled, 1 no longer exist"]


def test_all_that_match_are_done_so_many_at_once(
    operator: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventservice.adminsite.model_admin.MAX_ROWS", 3)
    monkeypatch.setattr(actions, "MAX_ROWS", 3)
    calls = submitted(tenant, 5)
    data = {"action": "cancel", "index": "0", "select_across": "1", "_selected_action": "x"}
    page = shown(operator.post(list_of(CALLS), data))
    assert "Cancel 3 service calls?" in page
    assert "These are the first 3 of 5" in page
    chosen = [call for call in calls if f'value="{call.tenant_id}~{call.service_call_id}"' in page]
    assert len(chosen) == 3
    assert told(act_on(operator, CALLS, "cancel", calls)) == ["3 canceled"]
    assert statuses(tenant) == ["Canceled"] * 3 + ["Scheduled"] * 2


def test_all_that_match_keeps_to_the_filters(operator: Client, tenant: Tenant, intruder: Tenant) -> None:
    submitted(tenant, 2, "one")
    submitted(tenant, 1, "two")
    submitted(intruder, 1, "one")
    data = {"action": "cancel", "index": "0", "select_across": "1", "_selected_action": "x"}
    page = shown(operator.post(list_of(CALLS, tenant=tenant.pk, q="one"), data))
    assert "Cancel 2 service calls?" in page


def test_more_rows_than_sqlite_takes_in_one_expression_are_found(operator: Client, tenant: Tenant) -> None:
    calls = submitted(tenant, actions.MAX_ROWS)
    page = shown(act_on(operator, CALLS, "cancel", calls, confirmed=""))
    assert f"Cancel {actions.MAX_ROWS} service calls?" in page
    assert "and 490 more" in page


@pytest.fixture
def parked(tenant: Tenant) -> Any:
    moment = db_now()
    return OutboxEventFactory(tenant_id=tenant.pk, parked_at=moment, attempts=5, last_error="no")


def test_a_parked_event_is_tried_again_and_another_is_refused(operator: Client, parked: Any) -> None:
    flowing = OutboxEventFactory(tenant_id=parked.tenant_id)
    response = act_on(operator, EVENTS, "event-retry", [parked, flowing])
    assert told(response)[0].startswith("1 to be retried, 1 refused: “It is not parked")
    assert OutboxEvent.objects.for_tenant(parked.tenant_id).filter(parked_at=None).count() == 2
    assert list_audit_entries() == [("oscar", "event-retry", str(parked.pk))]


def test_a_parked_event_is_skipped(operator: Client, parked: Any) -> None:
    assert told(act_on(operator, EVENTS, "event-skip", [parked])) == ["1 skipped"]
    parked.refresh_from_db()
    assert parked.published_at is not None


def test_only_an_admin_revokes_keys(operator: Client, admin: Client, tenant: Tenant) -> None:
    key, _ = create_key(tenant.pk, ["read"])
    assert act_on(operator, "tenants_apikey", "key-revoke", [key]).status_code == 403
    assert ApiKey.objects.for_tenant(tenant.pk).get().revoked_at is None
    assert told(act_on(admin, "tenants_apikey", "key-revoke", [key])) == ["1 revoked"]
    assert ApiKey.objects.for_tenant(tenant.pk).get().revoked_at is not None
    assert "1 refused" in told(act_on(admin, "tenants_apikey", "key-revoke", [key]))[0]
    assert list_audit_entries() == [("ada", "key-revoke", key.key_id)]


def test_a_history_tells_nothing_of_what_only_has_the_same_number(admin: Client, parked: Any) -> None:
    act_on(admin, EVENTS, "event-skip", [parked])
    shard = TimerShard.objects.create(shard_id=parked.pk)
    assert "event-skip" in shown(admin.get(page_of(EVENTS, parked, "history")))
    assert "event-skip" not in shown(admin.get(page_of("timers_timershard", shard, "history")))

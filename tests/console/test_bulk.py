"""Bulk actions are previewed, confirmed by typing, run in batches, and applied to each call once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client

from eventservice.console.calls import bulk
from eventservice.operators.models import OperatorAction
from eventservice.tenants.directory import update_tenant
from eventservice.tenants.models import Tenant
from orchestration import admission
from orchestration.models import ServiceCall, ServiceCallTag
from outbox.models import OutboxEvent
from tests.console.call_list import make_call, read_hidden_field, submit_calls
from tests.factories import NamespaceFactory, set_status

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


@pytest.fixture(autouse=True)
def namespaces(tenant: Tenant, intruder: Tenant) -> Iterator[None]:
    NamespaceFactory(tenant=tenant)
    NamespaceFactory(tenant=intruder)
    admission.forget_allowances()
    yield
    admission.forget_allowances()


def preview(client: Client, do: str, query: str = "") -> str:
    """Preview the action on all matching calls."""
    response = client.post(f"/calls/bulk/?{query}", {"do": do, "of": "matching", "next": f"/calls/?{query}"})
    assert response.status_code == 303
    return str(client.get(response["Location"]).content.decode())


def preview_selected(client: Client, do: str, keys: list[str]) -> str:
    form = {"do": do, "of": "selected", "call": keys, "next": "/calls/?limit=10"}
    return str(client.post("/calls/bulk/", form).content.decode())


def run(client: Client, page: str, **fields: Any) -> Any:
    word = re.search(r'data-word="(\d+)"', page)
    given = {"word": word[1] if word else "", **fields}
    form = {"bulk": read_hidden_field(page, "bulk"), "next": read_hidden_field(page, "next"), **given}
    return client.post("/calls/bulk/run/", form, HTTP_ACCEPT="text/html")


def read_message(response: Any) -> str:
    """Return the message on the page that the response redirects to."""
    assert response.status_code == 303, response.content.decode()[:3000]
    page = response.client.get(response["Location"]).content.decode()
    (text,) = re.findall(r'role="status">\s*<svg.*?</svg>\s*<div>(.*?)</div>', page)
    return unescape(text)


def read_breakdown(page: str) -> dict[str, tuple[str, str]]:
    found = re.findall(
        r'class="pill \w+">(\w+)</span></td>\s*<td class="number">([^<]*)</td>\s*<td[^>]*>([^<]*)<', page
    )
    return {status: (count, happens) for status, count, happens in found}


def list_statuses(tenant: Tenant) -> list[str]:
    calls = ServiceCall.objects.for_tenant(tenant.tenant_id).order_by("service_call_id")
    return list(calls.values_list("status", flat=True))


# --- preview ---------------------------------------------------------------------------------------------------------


def test_the_preview_shows_what_will_change_and_changes_nothing(
    operator: Client, tenant: Tenant, intruder: Tenant
) -> None:
    submit_calls(tenant, 12)
    submit_calls(intruder, 2)
    make_call(tenant, status="Succeeded")
    page = preview(operator, "cancel")
    assert "Cancel 14 calls?" in page
    assert read_breakdown(page) == {"Scheduled": ("14", "Cancel"), "Succeeded": ("1", "Skip")}
    assert page.count("<li>") == 10
    assert "and 4 more" in page
    assert set(list_statuses(tenant)) == {"Scheduled", "Succeeded"}
    assert not OperatorAction.across_tenants.exists()


def test_a_bulk_action_applies_to_calls_that_match_the_filters(operator: Client, tenant: Tenant) -> None:
    submit_calls(tenant, 3, tags=frozenset({"x"}))
    submit_calls(tenant, 2)
    assert "Cancel 3 calls?" in preview(operator, "cancel", "tag=x")
    assert "Cancel 1 call?" in preview(operator, "cancel", "tag=x&name=job+1")


def test_an_invalid_filter_matches_nothing(operator: Client) -> None:
    response = operator.get("/calls/bulk/?do=cancel&stauts=Failed", HTTP_ACCEPT="text/html")
    assert response.status_code == 400
    assert "stauts" in response.content.decode()


def test_only_selected_calls_are_changed(operator: Client, tenant: Tenant) -> None:
    ids = submit_calls(tenant, 3)
    page = preview_selected(
        operator, "cancel", [f"{tenant.tenant_id}/{one}" for one in (ids[0], ids[2], ids[0])]
    )
    assert "Cancel 2 calls?" in page
    run(operator, page)
    assert list_statuses(tenant) == ["Canceled", "Scheduled", "Canceled"]


def test_an_empty_selection_is_reported_on_the_list(operator: Client) -> None:
    response = operator.post("/calls/bulk/", {"do": "cancel", "of": "selected", "next": "/calls/?limit=10"})
    assert response["Location"] == "/calls/?limit=10"
    assert "Select calls first" in operator.get("/calls/").content.decode()


def test_there_is_no_confirmation_if_nothing_can_be_done(operator: Client, tenant: Tenant) -> None:
    make_call(tenant, status="Succeeded")
    page = preview(operator, "replay")
    assert "Replay: nothing to do" in page
    assert "None of the calls is Failed" in page
    assert 'name="bulk"' not in page


def test_the_preview_says_if_more_calls_match_than_can_be_changed_at_once(
    operator: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_calls(tenant, 5)
    monkeypatch.setattr(bulk, "MAX_CALLS", 3)
    page = preview(operator, "cancel")
    assert "Cancel 3 calls?" in page
    assert "More than 3 calls match. This page covers the latest 3" in page


# --- the confirmation ---------------------------------------------------------------------------------------------------


def test_only_an_action_on_many_calls_is_confirmed_by_typing(operator: Client, tenant: Tenant) -> None:
    submit_calls(tenant, bulk.MAX_CALLS_UNTYPED)
    page = preview(operator, "cancel")
    assert 'name="word"' not in page
    submit_calls(tenant, 1)
    assert f'data-word="{bulk.MAX_CALLS_UNTYPED + 1}"' in preview(operator, "cancel")
    run(operator, page)
    assert sorted(list_statuses(tenant)) == ["Canceled"] * bulk.MAX_CALLS_UNTYPED + ["Scheduled"]


@pytest.mark.parametrize("word", ["", "2", "yes", "33"])
def test_nothing_changes_without_the_typed_number(
    operator: Client, tenant: Tenant, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MAX_CALLS_UNTYPED", 2)
    submit_calls(tenant, 3)
    response = run(operator, preview(operator, "cancel"), word=word)
    assert response.status_code == 400
    page = response.content.decode()
    assert "Type 3 to confirm. Nothing has been changed." in page
    assert set(list_statuses(tenant)) == {"Scheduled"}
    run(operator, page)
    assert set(list_statuses(tenant)) == {"Canceled"}


def test_exactly_the_previewed_calls_are_changed(operator: Client, tenant: Tenant) -> None:
    submit_calls(tenant, 2)
    page = preview(operator, "cancel")
    submit_calls(tenant, 1)
    assert read_message(run(operator, page)) == "Canceled 2 calls."
    assert list_statuses(tenant) == ["Canceled", "Canceled", "Scheduled"]


def test_a_preview_cannot_be_used_by_another_user(operator: Client, admin: Client, tenant: Tenant) -> None:
    submit_calls(tenant, 1)
    page = preview(operator, "cancel")
    assert run(admin, page).status_code == 303
    assert "This page has expired" in admin.get("/calls/").content.decode()
    assert list_statuses(tenant) == ["Scheduled"]


@pytest.mark.parametrize("token", ["", "x", "a:b:c", "." * 5000])
def test_a_forged_preview_is_refused(operator: Client, tenant: Tenant, token: str) -> None:
    submit_calls(tenant, 1)
    operator.post("/calls/bulk/run/", {"bulk": token, "word": "1"})
    assert "This page has expired" in operator.get("/calls/").content.decode()


def test_a_viewer_can_neither_preview_nor_run(viewer: Client, operator: Client, tenant: Tenant) -> None:
    ids = submit_calls(tenant, 1)
    key = f"{tenant.tenant_id}/{ids[0]}"
    token = read_hidden_field(preview(operator, "cancel"), "bulk")
    assert viewer.get("/calls/bulk/?do=cancel").status_code == 403
    assert viewer.post("/calls/bulk/", {"do": "cancel", "of": "selected", "call": key}).status_code == 403
    assert viewer.post("/calls/bulk/run/", {"bulk": token, "word": "1"}).status_code == 403
    assert list_statuses(tenant) == ["Scheduled"]


# --- changes ---------------------------------------------------------------------------------------------------


def test_canceling_skips_calls_that_have_changed_since(operator: Client, tenant: Tenant) -> None:
    ids = submit_calls(tenant, 3)
    page = preview(operator, "cancel")
    set_status(ServiceCall.across_tenants.filter(service_call_id=ids[1]), "Succeeded")
    assert read_message(run(operator, page)) == "Canceled 2 calls. Skipped: 1 changed in the meantime."
    assert list_statuses(tenant) == ["Canceled", "Succeeded", "Canceled"]


def test_a_replay_creates_one_copy_of_each_failed_call_however_often_it_is_sent(
    operator: Client, tenant: Tenant
) -> None:
    ids = submit_calls(tenant, 3)
    set_status(ServiceCall.across_tenants.filter(service_call_id__in=ids[:2]), "Failed")
    page = preview(operator, "replay")
    assert read_breakdown(page) == {"Scheduled": ("1", "Skip"), "Failed": ("2", "Replay")}
    assert read_message(run(operator, page)) == "Replayed 2 calls."
    assert read_message(run(operator, page)) == "Replayed 0 calls. Skipped: 2 already replayed."
    made = ServiceCall.objects.for_tenant(tenant.tenant_id).exclude(replay_of=None)
    assert set(made.values_list("replay_of", flat=True)) == set(ids[:2])
    assert made.count() == 2


def test_a_replayed_call_is_not_replayed_again_but_its_failed_copy_is(
    operator: Client, tenant: Tenant
) -> None:
    ids = submit_calls(tenant, 2)
    set_status(ServiceCall.across_tenants.filter(service_call_id__in=ids), "Failed")
    run(operator, preview_selected(operator, "replay", [f"{tenant.tenant_id}/{ids[0]}"]))
    made = ServiceCall.objects.for_tenant(tenant.tenant_id).exclude(replay_of=None)
    set_status(made, "Failed")
    page = preview(operator, "replay")
    assert read_breakdown(page) == {"Failed": ("2", "Replay")}
    assert re.search(r"Already replayed</td><td[^>]*>1</td><td[^>]*>Skip", page)
    assert read_message(run(operator, page)) == "Replayed 2 calls."
    assert set(made.values_list("replay_of", flat=True)) == {*ids, made.get(replay_of=ids[0]).service_call_id}
    set_status(made.filter(status="Scheduled"), "Succeeded")
    assert "The failed calls have already been replayed." in preview(operator, "replay")


def test_a_canceled_copy_does_not_count_as_a_replay(operator: Client, tenant: Tenant) -> None:
    ids = submit_calls(tenant, 1)
    set_status(ServiceCall.across_tenants.filter(service_call_id__in=ids), "Failed")
    run(operator, preview(operator, "replay"))
    made = ServiceCall.objects.for_tenant(tenant.tenant_id).filter(replay_of=ids[0])
    set_status(made, "Canceled")
    assert read_message(run(operator, preview(operator, "replay"))) == "Replayed 1 call."
    assert made.count() == 2


def test_a_replay_stops_at_the_pending_limit_and_shows_its_progress(
    operator: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH_SIZE", 2)
    ids = submit_calls(tenant, 4)
    set_status(ServiceCall.across_tenants.filter(service_call_id__in=ids), "Failed")
    update_tenant(tenant.tenant_id, max_pending=3)
    admission.forget_allowances()
    response = run(operator, preview(operator, "replay"))
    assert response.status_code == 429
    page = response.content.decode()
    assert "2 of 4 done" in page
    assert "Stopped: The pending limit of this tenant is 3." in page
    assert "data-continue" not in page
    update_tenant(tenant.tenant_id, max_pending=100)
    admission.forget_allowances()
    assert read_message(run(operator, page)) == "Replayed 4 calls."


def test_run_now_applies_to_calls_that_are_not_due(operator: Client, tenant: Tenant) -> None:
    submit_calls(tenant, 2)
    submit_calls(tenant, 1, delay=timedelta())
    page = preview(operator, "run-now", "status=Scheduled")
    assert read_message(run(operator, page)) == "Rescheduled 2 calls to now. Skipped: 1 already due."
    assert read_message(run(operator, page)) == "Rescheduled 0 calls to now. Skipped: 3 already due."
    assert OutboxEvent.across_tenants.filter(event_type="ServiceCallRescheduled").count() == 2


def test_a_tag_is_added_and_removed(operator: Client, tenant: Tenant) -> None:
    submit_calls(tenant, 2, tags=frozenset({"kept"}))
    make_call(tenant, status="Failed")
    assert read_message(run(operator, preview(operator, "tag"), tag=" night ")) == "Tagged 3 calls."
    tags = ServiceCallTag.objects.for_tenant(tenant.tenant_id)
    assert tags.filter(tag="night").count() == 3
    assert (
        read_message(run(operator, preview(operator, "untag", "tag=kept"), tag="night"))
        == "Removed the tag from 2 calls."
    )
    assert (tags.filter(tag="night").count(), tags.filter(tag="kept").count()) == (1, 2)


def test_a_tag_that_is_present_is_not_added_again(operator: Client, tenant: Tenant) -> None:
    submit_calls(tenant, 1, tags=frozenset({"kept"}))
    submit_calls(tenant, 1)
    assert (
        read_message(run(operator, preview(operator, "tag"), tag="kept"))
        == "Tagged 1 call. Skipped: 1 already done."
    )
    noted = OperatorAction.objects.for_tenant(tenant.tenant_id).values_list("action", flat=True)
    assert list(noted) == ["tag"]


def test_failed_calls_of_an_inactive_tenant_are_skipped(operator: Client, tenant: Tenant) -> None:
    make_call(tenant, status="Failed")
    page = preview(operator, "replay", "status=Failed")
    update_tenant(tenant.tenant_id, active=False)
    assert read_message(run(operator, page)) == "Replayed 0 calls. Skipped: 1 of an inactive tenant."
    assert ServiceCall.objects.for_tenant(tenant.tenant_id).count() == 1


@pytest.mark.parametrize("tag", ["", "   ", "x" * 65, "a\nb"])
def test_an_invalid_tag_is_reported_at_its_field(operator: Client, tenant: Tenant, tag: str) -> None:
    submit_calls(tenant, 1)
    response = run(operator, preview(operator, "tag"), tag=tag)
    assert response.status_code == 400
    assert 'id="w-bulk-tag">The tag must' in response.content.decode()
    assert not ServiceCallTag.across_tenants.exists()


def test_a_call_with_the_maximum_number_of_tags_is_skipped(operator: Client, tenant: Tenant) -> None:
    submit_calls(tenant, 1, tags=frozenset(map(str, range(20))))
    response = run(operator, preview(operator, "tag"), tag="one-more")
    assert read_message(response) == "Tagged 0 calls. Skipped: 1 with the maximum number of tags."


# --- batches ------------------------------------------------------------------------------------------------------


def test_a_long_run_shows_its_progress_and_continues(
    operator: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH_SIZE", 2)
    monkeypatch.setattr(bulk, "MAX_SECONDS_PER_REQUEST", 0.0)
    submit_calls(tenant, 5)
    response = run(operator, preview(operator, "cancel"))
    for done in (2, 4):
        page = response.content.decode()
        assert f"{done} of 5 done" in page
        assert list_statuses(tenant).count("Canceled") == done
        response = run(operator, page)
    assert read_message(response) == "Canceled 5 calls."
    assert response["Location"] == "/calls/?"
    assert OutboxEvent.across_tenants.filter(event_type="ServiceCallCanceled").count() == 5


def test_a_progress_page_that_is_sent_twice_changes_nothing_twice(
    operator: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH_SIZE", 2)
    monkeypatch.setattr(bulk, "MAX_SECONDS_PER_REQUEST", 0.0)
    ids = submit_calls(tenant, 4)
    set_status(ServiceCall.across_tenants.filter(service_call_id__in=ids), "Failed")
    page = run(operator, preview(operator, "replay")).content.decode()
    assert read_message(run(operator, page)) == "Replayed 4 calls."
    assert read_message(run(operator, page)).startswith("Replayed 2 calls. Skipped: 2 already replayed.")
    assert ServiceCall.objects.for_tenant(tenant.tenant_id).exclude(replay_of=None).count() == 4


def test_a_failed_batch_is_rolled_back_and_earlier_batches_are_kept(
    operator: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH_SIZE", 2)
    ids = submit_calls(tenant, 4)
    run_one = bulk.ACTIONS["cancel"].apply

    def break_at_the_last(job: Any, key: Any, correlation_id: Any) -> bool:
        if key[1] == ids[3]:
            raise OperationalError("busy")
        return run_one(job, key, correlation_id)

    broken = bulk.ACTIONS["cancel"]._replace(apply=break_at_the_last)
    with monkeypatch.context() as during:
        during.setitem(bulk.ACTIONS, "cancel", broken)
        response = run(operator, preview(operator, "cancel"))
    assert response.status_code == 503
    page = response.content.decode()
    assert "2 of 4 done" in page
    assert list_statuses(tenant) == ["Canceled", "Canceled", "Scheduled", "Scheduled"]
    assert read_message(run(operator, page)) == "Canceled 4 calls."


# --- audit log and redirect -----------------------------------------------------------------------------------------------------


def test_the_audit_log_has_the_run_and_each_call(operator: Client, tenant: Tenant) -> None:
    ids = submit_calls(tenant, 2)
    page = preview(operator, "cancel")
    run(operator, page)
    run(operator, page)
    whole, *each = OperatorAction.across_tenants.order_by("id")
    assert (whole.user, whole.action, whole.detail) == ("oscar", "bulk-cancel", {"calls": 2})
    assert [(one.action, one.subject, one.tenant_id) for one in each] == [
        ("cancel", str(one), tenant.tenant_id) for one in ids
    ]
    assert {one.detail["bulk"] for one in each} == {whole.subject}


def test_a_run_returns_to_its_list_and_to_no_other_site(operator: Client, tenant: Tenant) -> None:
    submit_calls(tenant, 1, tags=frozenset({"x"}))
    assert (
        run(operator, preview(operator, "cancel", "tag=x&limit=10"))["Location"] == "/calls/?tag=x&limit=10"
    )
    submit_calls(tenant, 1)
    page = preview(operator, "cancel")
    assert run(operator, page, next="//evil.example/")["Location"] == "/calls/"

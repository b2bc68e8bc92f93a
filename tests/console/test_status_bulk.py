"""Many calls at once: shown before, confirmed by typing, done in pieces, and each call once."""

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
from tests.console.status_rows import field, make_call, submit_calls
from tests.factories import NamespaceFactory

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


@pytest.fixture(autouse=True)
def namespaces(tenant: Tenant, intruder: Tenant) -> Iterator[None]:
    NamespaceFactory(tenant=tenant)
    NamespaceFactory(tenant=intruder)
    admission.forget_allowances()
    yield
    admission.forget_allowances()


def preview(client: Client, do: str, query: str = "") -> str:
    """Of all that match."""
    response = client.post(f"/calls/bulk/?{query}", {"do": do, "of": "matching", "next": f"/calls/?{query}"})
    assert response.status_code == 303
    return str(client.get(response["Location"]).content.decode())


def selected(client: Client, do: str, keys: list[str]) -> str:
    form = {"do": do, "of": "selected", "call": keys, "next": "/calls/?limit=10"}
    return str(client.post("/calls/bulk/", form).content.decode())


def run(client: Client, page: str, **fields: Any) -> Any:
    word = re.search(r'data-word="(\d+)"', page)
    given = {"word": word[1] if word else "", **fields}
    form = {"bulk": field(page, "bulk"), "next": field(page, "next"), **given}
    return client.post("/calls/bulk/run/", form, HTTP_ACCEPT="text/html")


def said(response: Any) -> str:
    """The message that the next page shows."""
    assert response.status_code == 303, response.content.decode()[:3000]
    page = response.client.get(response["Location"]).content.decode()
    (text,) = re.findall(r'role="status">\s*<svg.*?</svg>\s*<div>(.*?)</div>', page)
    return unescape(text)


def breakdown(page: str) -> dict[str, tuple[str, str]]:
    found = re.findall(
        r'class="pill \w+">(\w+)</span></td><td class="number">([^<]*)</td><td[^>]*>([^<]*)<', page
    )
    return {status: (count, happens) for status, count, happens in found}


def statuses(tenant: Tenant) -> list[str]:
    calls = ServiceCall.objects.for_tenant(tenant.tenant_id).order_by("service_call_id")
    return list(calls.values_list("status", flat=True))


# --- before ---------------------------------------------------------------------------------------------------------


def test_the_preview_says_what_will_be_touched_and_changes_nothing(
    operator: Client, tenant: Tenant, intruder: Tenant
) -> None:
    submit_calls(tenant, 12)
    submit_calls(intruder, 2)
    make_call(tenant, status="Succeeded")
    page = preview(operator, "cancel")
    assert "Cancel 14 calls?" in page
    assert breakdown(page) == {"Scheduled": ("14", "Cancel"), "Succeeded": ("1", "Left alone")}
    assert page.count("<li>") == 10
    assert "and 4 more" in page
    assert set(statuses(tenant)) == {"Scheduled", "Succeeded"}
    assert not OperatorAction.across_tenants.exists()


def test_it_is_of_what_the_filter_of_the_list_matches(operator: Client, tenant: Tenant) -> None:
    submit_calls(tenant, 3, tags=frozenset({"x"}))
    submit_calls(tenant, 2)
    assert "Cancel 3 calls?" in preview(operator, "cancel", "tag=x")
    assert "Cancel 1 call?" in preview(operator, "cancel", "tag=x&name=job+1")


def test_a_filter_that_is_wrong_matches_nothing_at_all(operator: Client) -> None:
    response = operator.get("/calls/bulk/?do=cancel&stauts=Failed", HTTP_ACCEPT="text/html")
    assert response.status_code == 400
    assert "stauts" in response.content.decode()


def test_a_selection_is_of_those_and_no_others(operator: Client, tenant: Tenant) -> None:
    ids = submit_calls(tenant, 3)
    page = selected(operator, "cancel", [f"{tenant.tenant_id}/{one}" for one in (ids[0], ids[2], ids[0])])
    assert "Cancel 2 calls?" in page
    run(operator, page)
    assert statuses(tenant) == ["Canceled", "Scheduled", "Canceled"]


def test_nothing_selected_is_said_on_the_list(operator: Client) -> None:
    response = operator.post("/calls/bulk/", {"do": "cancel", "of": "selected", "next": "/calls/?limit=10"})
    assert response["Location"] == "/calls/?limit=10"
    assert "Select the calls first" in operator.get("/calls/").content.decode()


def test_where_nothing_can_be_done_nothing_is_asked(operator: Client, tenant: Tenant) -> None:
    make_call(tenant, status="Succeeded")
    page = preview(operator, "replay")
    assert "Retry: nothing to do" in page
    assert "None of them is Failed" in page
    assert 'name="bulk"' not in page


def test_more_than_may_be_touched_at_once_is_said(
    operator: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_calls(tenant, 5)
    monkeypatch.setattr(bulk, "MOST_CALLS", 3)
    page = preview(operator, "cancel")
    assert "Cancel 3 calls?" in page
    assert "More than 3 calls match. These are the latest 3 of them" in page


# --- the confirmation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["", "2", "yes", "33"])
def test_nothing_is_done_without_the_number(operator: Client, tenant: Tenant, word: str) -> None:
    submit_calls(tenant, 3)
    response = run(operator, preview(operator, "cancel"), word=word)
    assert response.status_code == 400
    page = response.content.decode()
    assert "Type 3 to confirm. Nothing has been changed." in page
    assert set(statuses(tenant)) == {"Scheduled"}
    run(operator, page)
    assert set(statuses(tenant)) == {"Canceled"}


def test_what_was_shown_is_what_is_touched(operator: Client, tenant: Tenant) -> None:
    submit_calls(tenant, 2)
    page = preview(operator, "cancel")
    submit_calls(tenant, 1)
    assert said(run(operator, page)) == "Canceled: 2 calls."
    assert statuses(tenant) == ["Canceled", "Canceled", "Scheduled"]


def test_a_preview_is_good_for_whoever_asked_for_it(operator: Client, admin: Client, tenant: Tenant) -> None:
    submit_calls(tenant, 1)
    page = preview(operator, "cancel")
    assert run(admin, page).status_code == 303
    assert "too old to act on" in admin.get("/calls/").content.decode()
    assert statuses(tenant) == ["Scheduled"]


@pytest.mark.parametrize("token", ["", "x", "a:b:c", "." * 5000])
def test_a_preview_cannot_be_made_up(operator: Client, tenant: Tenant, token: str) -> None:
    submit_calls(tenant, 1)
    operator.post("/calls/bulk/run/", {"bulk": token, "word": "1"})
    assert "too old to act on" in operator.get("/calls/").content.decode()


def test_a_viewer_gets_neither_preview_nor_run(viewer: Client, operator: Client, tenant: Tenant) -> None:
    ids = submit_calls(tenant, 1)
    key = f"{tenant.tenant_id}/{ids[0]}"
    token = field(preview(operator, "cancel"), "bulk")
    assert viewer.get("/calls/bulk/?do=cancel").status_code == 403
    assert viewer.post("/calls/bulk/", {"do": "cancel", "of": "selected", "call": key}).status_code == 403
    assert viewer.post("/calls/bulk/run/", {"bulk": token, "word": "1"}).status_code == 403
    assert statuses(tenant) == ["Scheduled"]


# --- what is done ---------------------------------------------------------------------------------------------------


def test_canceling_leaves_alone_what_has_changed_since(operator: Client, tenant: Tenant) -> None:
    ids = submit_calls(tenant, 3)
    page = preview(operator, "cancel")
    ServiceCall.across_tenants.filter(service_call_id=ids[1]).update(status="Succeeded")
    assert said(run(operator, page)) == "Canceled: 2 calls. Left alone: 1 changed meanwhile."
    assert statuses(tenant) == ["Canceled", "Succeeded", "Canceled"]


def test_a_retry_makes_one_new_call_of_each_failed_one_however_often_it_is_sent(
    operator: Client, tenant: Tenant
) -> None:
    ids = submit_calls(tenant, 3)
    ServiceCall.across_tenants.filter(service_call_id__in=ids[:2]).update(status="Failed")
    page = preview(operator, "replay")
    assert breakdown(page) == {"Scheduled": ("1", "Left alone"), "Failed": ("2", "Retry")}
    assert said(run(operator, page)) == "Retried: 2 calls."
    assert said(run(operator, page)) == "Retried: 0 calls. Left alone: 2 retried before."
    made = ServiceCall.objects.for_tenant(tenant.tenant_id).exclude(replay_of=None)
    assert set(made.values_list("replay_of", flat=True)) == set(ids[:2])
    assert made.count() == 2


def test_what_has_been_retried_is_not_retried_again_but_what_failed_anew_is(
    operator: Client, tenant: Tenant
) -> None:
    ids = submit_calls(tenant, 2)
    ServiceCall.across_tenants.filter(service_call_id__in=ids).update(status="Failed")
    run(operator, selected(operator, "replay", [f"{tenant.tenant_id}/{ids[0]}"]))
    made = ServiceCall.objects.for_tenant(tenant.tenant_id).exclude(replay_of=None)
    made.update(status="Failed")
    page = preview(operator, "replay")
    assert breakdown(page) == {"Failed": ("2", "Retry")}
    assert re.search(r"Retried before</td><td[^>]*>1</td><td[^>]*>Left alone", page)
    assert said(run(operator, page)) == "Retried: 2 calls."
    assert set(made.values_list("replay_of", flat=True)) == {*ids, made.get(replay_of=ids[0]).service_call_id}
    made.filter(status="Scheduled").update(status="Succeeded")
    assert "Those that failed have been retried before." in preview(operator, "replay")


def test_a_retry_that_was_canceled_is_none(operator: Client, tenant: Tenant) -> None:
    ids = submit_calls(tenant, 1)
    ServiceCall.across_tenants.filter(service_call_id__in=ids).update(status="Failed")
    run(operator, preview(operator, "replay"))
    made = ServiceCall.objects.for_tenant(tenant.tenant_id).filter(replay_of=ids[0])
    made.update(status="Canceled")
    assert said(run(operator, preview(operator, "replay"))) == "Retried: 1 call."
    assert made.count() == 2


def test_a_retry_keeps_to_the_tenants_ceiling_and_says_how_far_it_came(
    operator: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PIECE", 2)
    ids = submit_calls(tenant, 4)
    ServiceCall.across_tenants.filter(service_call_id__in=ids).update(status="Failed")
    update_tenant(tenant.tenant_id, max_pending=3)
    admission.forget_allowances()
    response = run(operator, preview(operator, "replay"))
    assert response.status_code == 429
    page = response.content.decode()
    assert "2 of 4 done" in page
    assert "It stopped here: This tenant may have 3 calls pending" in page
    assert "data-continue" not in page
    update_tenant(tenant.tenant_id, max_pending=100)
    admission.forget_allowances()
    assert said(run(operator, page)) == "Retried: 4 calls."


def test_running_now_takes_those_that_are_not_due(operator: Client, tenant: Tenant) -> None:
    submit_calls(tenant, 2)
    submit_calls(tenant, 1, delay=timedelta())
    page = preview(operator, "run-now", "status=Scheduled")
    assert said(run(operator, page)) == "Made due: 2 calls. Left alone: 1 due already."
    assert said(run(operator, page)) == "Made due: 0 calls. Left alone: 3 due already."
    assert OutboxEvent.across_tenants.filter(event_type="ServiceCallRescheduled").count() == 2


def test_a_tag_is_put_on_and_taken_off(operator: Client, tenant: Tenant) -> None:
    submit_calls(tenant, 2, tags=frozenset({"kept"}))
    make_call(tenant, status="Failed")
    assert said(run(operator, preview(operator, "tag"), tag=" night ")) == "Tagged: 3 calls."
    tags = ServiceCallTag.objects.for_tenant(tenant.tenant_id)
    assert tags.filter(tag="night").count() == 3
    assert (
        said(run(operator, preview(operator, "untag", "tag=kept"), tag="night"))
        == "Took the tag off: 2 calls."
    )
    assert (tags.filter(tag="night").count(), tags.filter(tag="kept").count()) == (1, 2)


def test_a_tag_that_is_there_is_not_put_on_again(operator: Client, tenant: Tenant) -> None:
    submit_calls(tenant, 1, tags=frozenset({"kept"}))
    submit_calls(tenant, 1)
    assert (
        said(run(operator, preview(operator, "tag"), tag="kept"))
        == "Tagged: 1 call. Left alone: 1 done already."
    )
    noted = OperatorAction.objects.for_tenant(tenant.tenant_id).values_list("action", flat=True)
    assert list(noted) == ["tag"]


def test_what_failed_of_a_tenant_that_is_not_active_is_left_alone(operator: Client, tenant: Tenant) -> None:
    make_call(tenant, status="Failed")
    page = preview(operator, "replay", "status=Failed")
    update_tenant(tenant.tenant_id, active=False)
    assert said(run(operator, page)) == "Retried: 0 calls. Left alone: 1 of a tenant that is not active."
    assert ServiceCall.objects.for_tenant(tenant.tenant_id).count() == 1


@pytest.mark.parametrize("tag", ["", "   ", "x" * 65, "a\nb"])
def test_what_is_no_tag_is_said_at_its_field(operator: Client, tenant: Tenant, tag: str) -> None:
    submit_calls(tenant, 1)
    response = run(operator, preview(operator, "tag"), tag=tag)
    assert response.status_code == 400
    assert 'id="w-bulk-tag">The tag must' in response.content.decode()
    assert not ServiceCallTag.across_tenants.exists()


def test_a_call_that_has_as_many_tags_as_it_may_have_is_left_alone(operator: Client, tenant: Tenant) -> None:
    submit_calls(tenant, 1, tags=frozenset(map(str, range(20))))
    response = run(operator, preview(operator, "tag"), tag="one-more")
    assert said(response) == "Tagged: 0 calls. Left alone: 1 with as many tags as there may be."


# --- in pieces ------------------------------------------------------------------------------------------------------


def test_when_its_time_is_up_it_says_how_far_it_is_and_goes_on(
    operator: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PIECE", 2)
    monkeypatch.setattr(bulk, "SECONDS", 0.0)
    submit_calls(tenant, 5)
    response = run(operator, preview(operator, "cancel"))
    for done in (2, 4):
        page = response.content.decode()
        assert f"{done} of 5 done" in page
        assert statuses(tenant).count("Canceled") == done
        response = run(operator, page)
    assert said(response) == "Canceled: 5 calls."
    assert response["Location"] == "/calls/?"
    assert OutboxEvent.across_tenants.filter(event_type="ServiceCallCanceled").count() == 5


def test_a_page_of_its_progress_sent_twice_does_nothing_twice(
    operator: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PIECE", 2)
    monkeypatch.setattr(bulk, "SECONDS", 0.0)
    ids = submit_calls(tenant, 4)
    ServiceCall.across_tenants.filter(service_call_id__in=ids).update(status="Failed")
    page = run(operator, preview(operator, "replay")).content.decode()
    assert said(run(operator, page)) == "Retried: 4 calls."
    assert said(run(operator, page)).startswith("Retried: 2 calls. Left alone: 2 retried before.")
    assert ServiceCall.objects.for_tenant(tenant.tenant_id).exclude(replay_of=None).count() == 4


def test_a_piece_that_breaks_leaves_nothing_and_what_was_done_stays(
    operator: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PIECE", 2)
    ids = submit_calls(tenant, 4)
    run_one = bulk.KINDS["cancel"].run

    def break_at_the_last(job: Any, key: Any, correlation_id: Any) -> bool:
        if key[1] == ids[3]:
            raise OperationalError("busy")
        return run_one(job, key, correlation_id)

    broken = bulk.KINDS["cancel"]._replace(run=break_at_the_last)
    with monkeypatch.context() as during:
        during.setitem(bulk.KINDS, "cancel", broken)
        response = run(operator, preview(operator, "cancel"))
    assert response.status_code == 503
    page = response.content.decode()
    assert "2 of 4 done" in page
    assert statuses(tenant) == ["Canceled", "Canceled", "Scheduled", "Scheduled"]
    assert said(run(operator, page)) == "Canceled: 4 calls."


# --- who did it -----------------------------------------------------------------------------------------------------


def test_the_action_log_has_the_bulk_and_each_call(operator: Client, tenant: Tenant) -> None:
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


def test_it_goes_back_to_the_list_as_it_was_and_nowhere_else(operator: Client, tenant: Tenant) -> None:
    submit_calls(tenant, 1, tags=frozenset({"x"}))
    assert (
        run(operator, preview(operator, "cancel", "tag=x&limit=10"))["Location"] == "/calls/?tag=x&limit=10"
    )
    submit_calls(tenant, 1)
    page = preview(operator, "cancel")
    assert run(operator, page, next="//evil.example/")["Location"] == "/calls/"

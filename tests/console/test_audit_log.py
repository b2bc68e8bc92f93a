"""The audit log shows who did what, when and to what. It is filtered by its URL, and every operator may read it."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.test import Client

from eventservice.console import audit_log
from eventservice.db.now import db_now
from eventservice.kernel.ids import new_id
from eventservice.operators.models import OperatorAction
from eventservice.tenants.models import Tenant

pytestmark = pytest.mark.django_db


def create_entry(
    action: str, tenant_id: uuid.UUID | None = None, subject: object = "", **detail: Any
) -> OperatorAction:
    user = detail.pop("user", "oscar")
    made: OperatorAction = OperatorAction.objects.create(
        at=db_now(), user=user, action=action, tenant_id=tenant_id, subject=str(subject), detail=detail
    )
    return made


def list_actions(client: Client, query: str = "") -> list[str]:
    response = client.get(f"/audit-log/?{query}")
    assert response.status_code == 200
    return [row["action"].action for row in response.context["rows"]]


def list_subject_urls(client: Client) -> list[str]:
    return [row["address"] for row in client.get("/audit-log/").context["rows"]]


def test_an_empty_log_says_what_it_will_show(viewer: Client) -> None:
    assert "No entries yet" in viewer.get("/audit-log/").content.decode()


def test_the_newest_entry_comes_first_with_its_user_and_subject(viewer: Client, tenant: Tenant) -> None:
    create_entry("cancel", tenant.tenant_id, new_id(), reason="too late")
    create_entry("tenant-change", tenant.tenant_id, tenant.tenant_id, max_in_flight=5, user="ada")
    assert list_actions(viewer) == ["tenant-change", "cancel"]
    page = viewer.get("/audit-log/").content.decode()
    for text in ("ada", "oscar", "tenant change", "too late", "max_in_flight", "acme"):
        assert text in page


def test_the_subject_of_an_entry_is_a_link(viewer: Client, tenant: Tenant) -> None:
    call = new_id()
    tenant_page = f"/tenants/{tenant.tenant_id}/"
    for action, tenant_id, subject in (
        ("cancel", tenant.tenant_id, call),
        ("event-skip", tenant.tenant_id, 7),
        ("tenant-change", tenant.tenant_id, tenant.tenant_id),
        ("key-revoke", tenant.tenant_id, "abc"),
        ("key-revoke", None, "abc"),
        ("bulk-cancel", None, "300 calls"),
    ):
        create_entry(action, tenant_id, subject)
    assert list_subject_urls(viewer)[::-1] == [
        f"/calls/{tenant.tenant_id}/{call}/", "/events/7/", tenant_page, tenant_page, "/keys/", "",
    ]  # fmt: skip


def test_an_entry_of_a_deleted_tenant_is_shown(viewer: Client) -> None:
    create_entry("cancel", new_id(), new_id())
    assert list_actions(viewer) == ["cancel"]


def test_filters_are_in_the_url(viewer: Client, tenant: Tenant, intruder: Tenant) -> None:
    call = new_id()
    create_entry("cancel", tenant.tenant_id, call)
    create_entry("replay", tenant.tenant_id, call, user="ada")
    create_entry("cancel", intruder.tenant_id, new_id(), user="ada")
    assert list_actions(viewer, "user=ada") == ["cancel", "replay"]
    assert list_actions(viewer, "action=cancel&user=") == ["cancel", "cancel"]
    assert list_actions(viewer, f"tenant={tenant.tenant_id}&user=ada") == ["replay"]
    assert list_actions(viewer, f"subject={call}") == ["replay", "cancel"]
    assert "No entries match these filters" in viewer.get("/audit-log/?user=eve").content.decode()


def test_paging_shows_every_entry_once(viewer: Client) -> None:
    made = [create_entry(f"a{number}").action for number in range(120)]
    seen, query = [], ""
    for _ in range(5):
        response = viewer.get(f"/audit-log/?{query}")
        seen += [row["action"].action for row in response.context["rows"]]
        if response.context["next"] is None:
            break
        query = f"cursor={response.context['next']}"
    assert seen == made[::-1]


def test_a_filter_searches_a_limited_number_and_offers_to_continue(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "MAX_EXAMINED", 10)
    create_entry("cancel", user="eve")
    for _ in range(25):
        create_entry("cancel")
    response = viewer.get("/audit-log/?user=eve")
    assert "No match in the 10 entries searched" in response.content.decode()
    seen = []
    for _ in range(5):
        seen += response.context["rows"]
        if response.context["next"] is None:
            break
        response = viewer.get(f"/audit-log/?user=eve&cursor={response.context['next']}")
    assert [row["action"].user for row in seen] == ["eve"]


@pytest.mark.parametrize("query", ["tenant=acme", "cursor=first"])
def test_an_invalid_filter_is_an_error_and_not_an_empty_list(viewer: Client, query: str) -> None:
    response = viewer.get(f"/audit-log/?{query}", HTTP_ACCEPT="text/html")
    assert response.status_code == 400
    assert "Fix the filters" in response.content.decode()


def test_the_details_of_an_entry_are_escaped(viewer: Client) -> None:
    create_entry("cancel", None, "<script>alert(1)</script>", why="<b>", user="<i>eve</i>")
    page = viewer.get("/audit-log/").content.decode()
    assert "<script>alert" not in page
    assert "<i>eve" not in page


def test_the_number_of_queries_does_not_grow_with_the_entries(
    viewer: Client, tenant: Tenant, django_assert_max_num_queries: Any
) -> None:
    for _ in range(50):
        create_entry("cancel", tenant.tenant_id, new_id())
    with django_assert_max_num_queries(10):
        viewer.get("/audit-log/")


def test_only_operators_read_the_audit_log(outsider: Client) -> None:
    assert outsider.get("/audit-log/")["Location"].startswith("/login/")

"""The admin gives what the console's roles give, and Django's permissions give nothing."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin as django_admin
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from eventservice.tenants.models import Tenant
from orchestration.models import ServiceCall
from tests.console.admin_pages import act_on, list_of, page_of, shown
from tests.factories import ServiceCallFactory

MODELS = [f"{model._meta.app_label}_{model._meta.model_name}" for model in django_admin.site._registry]
PEOPLE = {"auth_user", "auth_group", "admin_logentry"}
EDITABLE = {"tenants_tenant", "tenants_namespace", "auth_user", "auth_group"}


@pytest.fixture
def call(tenant: Tenant) -> Any:
    return ServiceCallFactory(tenant_id=tenant.pk)


def test_a_viewer_sees_everything_but_people(viewer: Client) -> None:
    refused = {model for model in MODELS if viewer.get(list_of(model)).status_code == 403}
    assert refused == PEOPLE


def test_only_an_admin_adds_and_only_configuration(viewer: Client, operator: Client, admin: Client) -> None:
    def addable(client: Client) -> set[str]:
        return {model for model in MODELS if client.get(reverse(f"admin:{model}_add")).status_code == 200}

    assert (addable(viewer), addable(operator), addable(admin)) == (set(), set(), EDITABLE)


def test_the_index_of_a_viewer_has_no_people_and_nothing_to_add(viewer: Client, admin: Client) -> None:
    page = shown(viewer.get("/admin/"))
    assert "Service calls" in page
    assert "Users" not in page
    assert "addlink" not in page
    assert "Users" in shown(admin.get("/admin/"))


@pytest.mark.parametrize("page", ["change", "delete"])
def test_a_post_to_a_call_changes_nothing_whoever_sends_it(
    page: str, viewer: Client, operator: Client, admin: Client, call: Any
) -> None:
    for client in (viewer, operator, admin):
        data = {"name": "other", "status": "Succeeded", "post": "yes"}
        assert client.post(page_of("orchestration_servicecall", call, page), data).status_code == 403
    kept = ServiceCall.objects.for_tenant(call.tenant_id).get()
    assert (kept.name, kept.status) == (call.name, call.status)


def test_a_viewer_runs_no_action(viewer: Client, call: Any) -> None:
    page = shown(viewer.get(list_of("orchestration_servicecall")))
    assert 'name="action"' not in page
    for confirmed in ("", "page"):
        response = act_on(viewer, "orchestration_servicecall", "cancel", [call], confirmed=confirmed)
        assert response.status_code == 403
    assert ServiceCall.objects.for_tenant(call.tenant_id).get().status == "Scheduled"


def test_an_operator_edits_no_configuration(operator: Client, tenant: Tenant) -> None:
    page = page_of("tenants_tenant", tenant)
    assert "_save" not in shown(operator.get(page))
    assert operator.post(page, {"active": ""}).status_code == 403
    tenant.refresh_from_db()
    assert tenant.active


def test_an_action_that_there_is_not_is_refused(operator: Client, call: Any) -> None:
    assert act_on(operator, "orchestration_servicecall", "delete_selected", [call]).status_code == 403
    assert ServiceCall.objects.for_tenant(call.tenant_id).exists()


def test_djangos_permissions_give_nothing(viewer: Client, tenant: Tenant) -> None:
    User.objects.get(username="vera").user_permissions.set(Permission.objects.all())
    assert viewer.get(list_of("auth_user")).status_code == 403
    assert viewer.post(page_of("tenants_tenant", tenant), {"active": ""}).status_code == 403


@pytest.mark.parametrize(
    "path", ["/admin/", "/admin/tenants/tenant/", "/admin/login/?next=/admin/tenants/tenant/"]
)
def test_who_is_not_signed_in_comes_through_the_consoles_login(path: str, outsider: Client) -> None:
    for client in (Client(), outsider):
        response = client.get(path, follow=True)
        final, _ = response.redirect_chain[-1]
        assert final.startswith("/login/?next=/admin/"), response.redirect_chain


def test_the_login_brings_back_to_the_page(db: None) -> None:
    User.objects.create_user("otto", password="correct horse battery", is_staff=True)
    client = Client()
    login, _ = client.get("/admin/tenants/tenant/?q=a", follow=True).redirect_chain[-1]
    given = {"username": "otto", "password": "correct horse battery", "next": "/admin/tenants/tenant/?q=a"}
    assert client.post(login, given)["Location"] == "/admin/tenants/tenant/?q=a"


def test_signing_out_ends_at_the_consoles_login(viewer: Client) -> None:
    assert viewer.post("/admin/logout/")["Location"] == "/login/"
    assert viewer.get("/admin/").status_code == 302


def test_a_page_asks_once_who_is_there(operator: Client, django_assert_max_num_queries: Any) -> None:
    with django_assert_max_num_queries(12) as queries:
        operator.get(list_of("orchestration_servicecall"))
    assert sum("auth_group" in query["sql"] for query in queries) == 1

"""The admin grants what the roles of the console grant; Django's permissions grant nothing."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin as django_admin
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from eventservice.tenants.models import Tenant
from orchestration.models import ServiceCall
from tests.console.admin_pages import build_list_url, build_page_url, read_page, run_action
from tests.factories import ServiceCallFactory

MODELS = [f"{model._meta.app_label}_{model._meta.model_name}" for model in django_admin.site._registry]
PEOPLE = {"auth_user", "auth_group", "admin_logentry"}
EDITABLE = {"tenants_tenant", "tenants_namespace", "auth_user", "auth_group"}


@pytest.fixture
def call(tenant: Tenant) -> Any:
    return ServiceCallFactory(tenant_id=tenant.pk)


def test_a_viewer_sees_everything_except_users(viewer: Client) -> None:
    refused = {model for model in MODELS if viewer.get(build_list_url(model)).status_code == 403}
    assert refused == PEOPLE


def test_only_an_admin_may_add_and_only_configuration(
    viewer: Client, operator: Client, admin: Client
) -> None:
    def addable(client: Client) -> set[str]:
        return {model for model in MODELS if client.get(reverse(f"admin:{model}_add")).status_code == 200}

    assert (addable(viewer), addable(operator), addable(admin)) == (set(), set(), EDITABLE)


def test_the_index_of_a_viewer_has_no_users_and_no_add_links(viewer: Client, admin: Client) -> None:
    page = read_page(viewer.get("/admin/"))
    assert "Service calls" in page
    assert "Users" not in page
    assert "addlink" not in page
    assert "Users" in read_page(admin.get("/admin/"))


@pytest.mark.parametrize("page", ["change", "delete"])
def test_nobody_can_change_a_call_by_a_post(
    page: str, viewer: Client, operator: Client, admin: Client, call: Any
) -> None:
    for client in (viewer, operator, admin):
        data = {"name": "other", "status": "Succeeded", "post": "yes"}
        assert client.post(build_page_url("orchestration_servicecall", call, page), data).status_code == 403
    kept = ServiceCall.objects.for_tenant(call.tenant_id).get()
    assert (kept.name, kept.status) == (call.name, call.status)


def test_a_viewer_can_run_no_action(viewer: Client, call: Any) -> None:
    page = read_page(viewer.get(build_list_url("orchestration_servicecall")))
    assert 'name="action"' not in page
    for confirmed in ("", "page"):
        response = run_action(viewer, "orchestration_servicecall", "cancel", [call], confirmed=confirmed)
        assert response.status_code == 403
    assert ServiceCall.objects.for_tenant(call.tenant_id).get().status == "Scheduled"


def test_an_operator_can_change_no_configuration(operator: Client, tenant: Tenant) -> None:
    page = build_page_url("tenants_tenant", tenant)
    assert "_save" not in read_page(operator.get(page))
    assert operator.post(page, {"active": ""}).status_code == 403
    tenant.refresh_from_db()
    assert tenant.active


def test_an_unknown_action_is_refused(operator: Client, call: Any) -> None:
    assert run_action(operator, "orchestration_servicecall", "delete_selected", [call]).status_code == 403
    assert ServiceCall.objects.for_tenant(call.tenant_id).exists()


def test_permissions_of_django_grant_nothing(viewer: Client, tenant: Tenant) -> None:
    User.objects.get(username="vera").user_permissions.set(Permission.objects.all())
    assert viewer.get(build_list_url("auth_user")).status_code == 403
    assert viewer.post(build_page_url("tenants_tenant", tenant), {"active": ""}).status_code == 403


@pytest.mark.parametrize(
    "path", ["/admin/", "/admin/tenants/tenant/", "/admin/login/?next=/admin/tenants/tenant/"]
)
def test_anonymous_users_are_redirected_to_the_login_of_the_console(path: str, outsider: Client) -> None:
    for client in (Client(), outsider):
        response = client.get(path, follow=True)
        final, _ = response.redirect_chain[-1]
        assert final.startswith("/login/?next=/admin/"), response.redirect_chain


def test_the_login_returns_to_the_page(db: None) -> None:
    User.objects.create_user("otto", password="correct horse battery", is_staff=True)
    client = Client()
    login, _ = client.get("/admin/tenants/tenant/?q=a", follow=True).redirect_chain[-1]
    given = {"username": "otto", "password": "correct horse battery", "next": "/admin/tenants/tenant/?q=a"}
    assert client.post(login, given)["Location"] == "/admin/tenants/tenant/?q=a"


def test_signing_out_leads_to_the_login_of_the_console(viewer: Client) -> None:
    assert viewer.post("/admin/logout/")["Location"] == "/login/"
    assert viewer.get("/admin/").status_code == 302


def test_a_page_reads_the_role_once(operator: Client, django_assert_max_num_queries: Any) -> None:
    with django_assert_max_num_queries(12) as queries:
        operator.get(build_list_url("orchestration_servicecall"))
    assert sum("auth_group" in query["sql"] for query in queries) == 1

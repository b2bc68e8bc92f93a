"""The admin changes configuration as the API does, and records it in the audit log and in Django's history."""

from __future__ import annotations

import base64
from typing import Any

from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.test import Client

from eventservice.kernel.ids import new_id
from eventservice.kernel.secrets import decrypt
from eventservice.operators.models import OperatorAction
from eventservice.operators.roles import Role, role_of
from eventservice.tenants.directory import get_profile, update_tenant
from eventservice.tenants.models import Namespace, Tenant
from outbox.models import WebhookEndpoint
from tests.console.admin_pages import build_page_url, read_page
from tests.contracts.timer_stores.memory_fleet import MemoryFleet
from tests.factories import EARLIER, NamespaceFactory

TENANT = "tenants_tenant"
SECRET = "whsec_" + base64.b64encode(b"a canary that sings" * 2).decode()
LIMITS = {
    "active": "on", "max_in_flight": "10", "max_pending": "20", "requests_per_minute": "30",
    "bytes_per_minute": "600000000", "max_stored_bytes": "100000000000", "allowed_hosts": "",
    "secret_headers": "", "signing_secret": "",
}  # fmt: skip


def fill_form(client: Client, tenant: Tenant, **typed: str) -> dict[str, str]:
    """The form of a tenant, as a browser sends it: what is typed, and what was shown."""
    field = client.get(build_page_url(TENANT, tenant)).context["adminform"].form["edit_token"]
    return {**LIMITS, "edit_token": field.value(), **typed}


def get_last_entry() -> Any:
    return OperatorAction.across_tenants.order_by("id").last()


def read_errors(response: Any) -> str:
    assert response.status_code == 200, "it was saved"
    form = response.context["adminform"].form
    return str({**form.errors})


def test_a_changed_limit_takes_effect_at_once(admin: Client, tenant: Tenant) -> None:
    assert get_profile(tenant.pk).max_in_flight == 1000
    hosts = "one.test\r\n\r\ntwo.test\r\n one.test "
    response = admin.post(build_page_url(TENANT, tenant), fill_form(admin, tenant, allowed_hosts=hosts))
    assert response.status_code == 302
    assert get_profile(tenant.pk).max_in_flight == 10
    tenant.refresh_from_db()
    assert tenant.allowed_hosts == ["one.test", "two.test"]
    assert tenant.name == "acme"


def test_a_change_is_in_both_logs(admin: Client, tenant: Tenant) -> None:
    admin.post(build_page_url(TENANT, tenant), fill_form(admin, tenant, max_in_flight="1000"))
    note = get_last_entry()
    assert (note.user, note.action, note.subject) == ("ada", "tenant-change", str(tenant.pk))
    assert note.tenant_id == tenant.pk
    assert note.detail == {"max_pending": 20, "requests_per_minute": 30}
    assert "Max pending" in LogEntry.objects.get().get_change_message()
    assert "tenant-change" in read_page(admin.get(build_page_url(TENANT, tenant, "history")))


def test_changes_that_somebody_else_has_made_since_are_not_overwritten(admin: Client, tenant: Tenant) -> None:
    update_tenant(tenant.pk, allowed_hosts=["good.test", "evil.test"])
    typed = fill_form(admin, tenant, allowed_hosts="good.test\nevil.test")
    update_tenant(tenant.pk, allowed_hosts=["good.test"])
    refused = admin.post(build_page_url(TENANT, tenant), typed)
    assert "somebody else changed this tenant" in read_errors(refused)
    assert "Allowed hosts: good.test." in read_errors(refused)
    assert "good.test\nevil.test</textarea>" in refused.content.decode()
    tenant.refresh_from_db()
    assert (tenant.allowed_hosts, tenant.max_pending) == (["good.test"], 1_000_000)
    assert OperatorAction.across_tenants.count() == 0
    again = {**typed, "edit_token": refused.context["adminform"].form["edit_token"].value()}
    assert admin.post(build_page_url(TENANT, tenant), again).status_code == 302
    tenant.refresh_from_db()
    assert tenant.allowed_hosts == ["good.test", "evil.test"]


def test_a_form_without_changes_is_not_in_the_audit_log(admin: Client, tenant: Tenant) -> None:
    same = {"max_in_flight": "1000", "max_pending": "1000000", "requests_per_minute": "60000"}
    assert admin.post(build_page_url(TENANT, tenant), fill_form(admin, tenant, **same)).status_code == 302
    assert OperatorAction.across_tenants.count() == 0


def test_a_tenant_is_created_with_its_namespace(admin: Client, db: None) -> None:
    assert admin.post("/admin/tenants/tenant/add/", {**LIMITS, "name": "newcomer"}).status_code == 302
    made = Tenant.objects.get(name="newcomer")
    assert made.max_pending == 20
    assert Namespace.objects.for_tenant(made.pk).get().name == "default"
    assert (get_last_entry().action, get_last_entry().subject) == ("tenant-create", str(made.pk))


def test_invalid_values_are_reported_at_their_fields_and_save_nothing(admin: Client, tenant: Tenant) -> None:
    wrong = {"max_in_flight": "0", "signing_secret": "hunter2", "allowed_hosts": "x" * 300}
    wrong = fill_form(admin, tenant, **wrong)
    errors = read_errors(admin.post(build_page_url(TENANT, tenant), wrong))
    assert all(name in errors for name in ("max_in_flight", "signing_secret", "allowed_hosts"))
    assert "name" in read_errors(admin.post("/admin/tenants/tenant/add/", {**LIMITS, "name": "acme"}))
    assert "name" in read_errors(admin.post("/admin/tenants/tenant/add/", {**LIMITS, "name": "No Name!"}))
    assert OperatorAction.across_tenants.count() == 0


def test_a_signing_secret_is_stored_encrypted_and_never_shown(admin: Client, tenant: Tenant) -> None:
    admin.post(build_page_url(TENANT, tenant), fill_form(admin, tenant, signing_secret=SECRET))
    tenant.refresh_from_db()
    assert decrypt(tenant.signing_secret) == SECRET
    assert get_last_entry().detail["fields"] == ["signing_secret"]
    pages = [
        build_page_url(TENANT, tenant),
        build_page_url(TENANT, tenant, "history"),
        "/admin/tenants/tenant/",
    ]
    for page in (*pages, build_page_url("eventservice_operatoraction", get_last_entry())):
        text = read_page(admin.get(page))
        assert SECRET not in text
        assert tenant.signing_secret not in text


def test_an_empty_secret_keeps_the_current_one(admin: Client, tenant: Tenant) -> None:
    admin.post(build_page_url(TENANT, tenant), fill_form(admin, tenant, signing_secret=SECRET))
    admin.post(build_page_url(TENANT, tenant), fill_form(admin, tenant, max_pending="21"))
    tenant.refresh_from_db()
    assert decrypt(tenant.signing_secret) == SECRET


def test_the_form_of_a_namespace_does_not_list_every_tenant(admin: Client, tenant: Tenant) -> None:
    page = admin.get("/admin/tenants/namespace/add/").content.decode()
    assert str(tenant.pk) not in page
    assert 'href="/admin/tenants/tenant/?' in page  # where one is looked up
    wrong = admin.post("/admin/tenants/namespace/add/", {"tenant": "acme", "name": "blue", "num_shards": "8"})
    assert "is not a valid UUID" in wrong.content.decode()
    made = admin.post(
        "/admin/tenants/namespace/add/", {"tenant": str(tenant.pk), "name": "blue", "num_shards": "8"}
    )
    assert made.status_code == 302
    assert Namespace.objects.for_tenant(tenant.pk).get(name="blue").num_shards == 8


def test_a_namespace_is_created_by_its_size(admin: Client, tenant: Tenant) -> None:
    url = "/admin/tenants/namespace/add/"
    assert '<option value="small" selected>' in admin.get(url).content.decode()
    given = {"tenant": str(tenant.pk), "name": "blue", "size": "medium", "num_shards": ""}
    assert admin.post(url, given).status_code == 302
    assert Namespace.objects.for_tenant(tenant.pk).get(name="blue").num_shards == 256
    assert ">medium<" in admin.get("/admin/tenants/namespace/").content.decode()
    refused = admin.post(url, {**given, "name": "green", "num_shards": "8"})
    assert "must not be given together with size" in refused.content.decode()


def test_a_namespace_is_created_in_a_timer_store(admin: Client, tenant: Tenant, fleet: MemoryFleet) -> None:
    url = "/admin/tenants/namespace/add/"
    given = {"tenant": str(tenant.pk), "name": "alerts", "size": "medium", "num_shards": "", "store": "fleet"}
    assert "is not available" in admin.post(url, {**given, "store": "away"}, follow=True).content.decode()
    assert not Namespace.objects.for_tenant(tenant.pk).exists()
    assert admin.post(url, given).status_code == 302
    assert Namespace.objects.for_tenant(tenant.pk).get().store == "fleet"
    (declared,) = fleet.tables.namespaces.values()
    assert declared.num_shards == 256
    action = OperatorAction.across_tenants.get(action="namespace-create")
    assert action.detail == {"name": "alerts", "shards": 256, "store": "fleet"}
    assert ">fleet<" in admin.get("/admin/tenants/namespace/").content.decode()


def test_without_timer_stores_the_form_of_a_namespace_has_no_field_for_one(admin: Client, db: None) -> None:
    assert 'name="store"' not in admin.get("/admin/tenants/namespace/add/").content.decode()


def test_the_shards_of_a_namespace_are_fixed(admin: Client, tenant: Tenant) -> None:
    space = NamespaceFactory(tenant=tenant, num_shards=4)
    assert admin.post(build_page_url("tenants_namespace", space), {"num_shards": "8"}).status_code == 403
    again = {"tenant": tenant.pk, "name": "default", "num_shards": "8"}
    assert "already has a namespace" in read_errors(admin.post("/admin/tenants/namespace/add/", again))
    assert Namespace.objects.for_tenant(tenant.pk).get().num_shards == 4


def test_an_endpoint_is_changed_and_keeps_its_secret(admin: Client, tenant: Tenant) -> None:
    endpoint = WebhookEndpoint.objects.create(
        tenant_id=tenant.pk, endpoint_id=new_id(), url="http://hooks.test/?token=canary", secret="enc:v1:sealed",
        active=False, disabled_reason="gone", created_at=EARLIER,
    )  # fmt: skip
    page = build_page_url("outbox_webhookendpoint", endpoint)
    given = {"url": "http://hooks.test/new", "event_types": "ServiceCallFailed", "active": "on"}
    assert "url" in read_errors(admin.post(page, {**given, "url": "ftp://hooks.test/"}))
    assert admin.post(page, given).status_code == 302
    stored = WebhookEndpoint.objects.for_tenant(tenant.pk).get()
    assert (stored.url, stored.event_types, stored.active) == (given["url"], ["ServiceCallFailed"], True)
    assert (stored.secret, stored.disabled_reason) == ("enc:v1:sealed", "")
    assert (get_last_entry().action, get_last_entry().subject) == (
        "endpoint-change",
        str(endpoint.endpoint_id),
    )


def test_the_group_of_a_user_determines_the_role(admin: Client) -> None:
    group = Group.objects.get_or_create(name="operator")[0]
    given = {"username": "olga", "usable_password": "true", "password1": "correct horse battery", "password2": "correct horse battery"}  # fmt: skip
    response = admin.post("/admin/auth/user/add/", {**given, "is_staff": "on", "groups": [group.pk]})
    assert response.status_code == 302
    olga = User.objects.get(username="olga")
    assert role_of(olga) is Role.OPERATOR
    assert get_last_entry().action == "user-create"
    assert get_last_entry().detail["groups"] == ["operator"]
    assert "correct horse" not in str(get_last_entry().detail)


def test_users_cannot_remove_their_own_rights(admin: Client) -> None:
    ada = User.objects.get(username="ada")
    page = build_page_url("auth_user", ada)
    assert admin.post(page, {"username": "ada", "first_name": "Ada"}).status_code == 302
    ada.refresh_from_db()
    assert (ada.first_name, ada.is_staff, role_of(ada)) == ("Ada", True, Role.ADMIN)
    assert admin.post(build_page_url("auth_user", ada, "delete"), {"post": "yes"}).status_code == 403


def test_a_role_can_be_neither_renamed_nor_deleted(admin: Client) -> None:
    role = Group.objects.get_or_create(name="viewer")[0]
    assert admin.post(build_page_url("auth_group", role), {"name": "reader"}).status_code == 403
    assert admin.post(build_page_url("auth_group", role, "delete"), {"post": "yes"}).status_code == 403
    other = Group.objects.create(name="on call")
    assert admin.post(build_page_url("auth_group", other, "delete"), {"post": "yes"}).status_code == 302


def test_setting_the_password_of_another_user_is_in_the_audit_log(admin: Client) -> None:
    olga = User.objects.create_user("olga", password="something long enough")
    given = {
        "usable_password": "true",
        "password1": "another long enough",
        "password2": "another long enough",
    }
    assert admin.post(f"/admin/auth/user/{olga.pk}/password/", given).status_code == 302
    olga.refresh_from_db()
    assert olga.check_password("another long enough")
    assert (get_last_entry().action, get_last_entry().subject) == ("user-password", "user olga")

"""Tenants: made, limited, deactivated by admins; the rules are the API's, and each fault is said at its field."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import NON_FIELD_ERRORS
from django.test import Client

from eventservice.kernel.ids import new_id
from eventservice.kernel.secrets import decrypt
from eventservice.operators.models import OperatorAction
from eventservice.tenants.directory import update_tenant
from eventservice.tenants.keys import create_key, find_key
from eventservice.tenants.models import Namespace, Tenant
from tests.factories import NamespaceFactory, ServiceCallFactory, TenantFactory

pytestmark = pytest.mark.django_db

LIMITS = {
    "maxInFlight": "50",
    "maxPending": "2000",
    "requestsPerMinute": "600",
    "allowedHosts": "api.example\n\n  Partner.Example  \n",
    "secretHeaders": "x-trace",
}
SECRET = "whsec_" + "c2VjcmV0" * 5


def of(tenant: Tenant, rest: str = "") -> str:
    return f"/tenants/{tenant.tenant_id}/{rest}"


def actions() -> list[str]:
    return list(OperatorAction.across_tenants.order_by("id").values_list("action", flat=True))


def with_shown(client: Client, tenant: Tenant, **typed: str) -> dict[str, str]:
    """The form of its limits, as a browser sends it: what is typed, and what was shown."""
    page = client.get(of(tenant)).context
    shown = {field.html_name: str(field.value()) for field in page["limits_form"]}
    return {**shown, "shown": page["edit_token"], **typed}


def refreshed(tenant: Tenant) -> Tenant:
    tenant.refresh_from_db()
    return tenant


def list_errors(response: Any, form: str = "form") -> dict[str, str]:
    """Return the errors of a refused form by the HTML names of its fields. The name of the form itself is empty."""
    assert response.status_code == 400
    sent = response.context[form]
    return {
        "" if name == NON_FIELD_ERRORS else sent[name].html_name: "; ".join(rules)
        for name, rules in sent.errors.items()
    }


# --- the list ---------------------------------------------------------------------------------------------------


def test_no_tenant_yet_teaches_the_next_step(admin: Client, viewer: Client) -> None:
    assert "/tenants/new/" in admin.get("/tenants/").content.decode()
    page = viewer.get("/tenants/").content.decode()
    assert "No tenants yet" in page
    assert "/tenants/new/" not in page


def test_they_are_listed_with_what_is_scheduled_and_their_keys(
    viewer: Client, tenant: Tenant, intruder: Tenant
) -> None:
    for status in ("Scheduled", "Scheduled", "Succeeded"):
        ServiceCallFactory(tenant_id=tenant.tenant_id, status=status)
    create_key(tenant.tenant_id, ["read"])
    create_key(None, ["read"])
    rows = {row.name: (pending, keys) for row, pending, keys in viewer.get("/tenants/").context["rows"]}
    assert rows == {"acme": (2, 1), "intruder": (0, 0)}


def test_the_list_comes_in_pages_by_name(viewer: Client) -> None:
    for number in range(30):
        TenantFactory(name=f"t{number:02}")
    first = viewer.get("/tenants/").context
    rest = viewer.get(f"/tenants/?after={first['next_after']}").context
    names = [row[0].name for page in (first, rest) for row in page["rows"]]
    assert names == [f"t{number:02}" for number in range(30)]


def test_how_roles_are_given_is_said_and_linked_for_admins(admin: Client, operator: Client) -> None:
    assert "/admin/auth/user/" in admin.get("/tenants/").content.decode()
    assert "/admin/auth/user/" not in operator.get("/tenants/").content.decode()


# --- making one -------------------------------------------------------------------------------------------------


def test_an_admin_makes_one(admin: Client) -> None:
    response = admin.post(
        "/tenants/new/", {"name": "acme", **LIMITS, "allowedHosts": "", "secretHeaders": ""}
    )
    made = Tenant.objects.get(name="acme")
    assert (response.status_code, response["Location"]) == (303, f"/tenants/{made.tenant_id}/")
    assert (made.max_in_flight, made.max_pending, made.allowed_hosts) == (50, 2000, [])
    assert Namespace.objects.for_tenant(made.tenant_id).get().name == "default"
    assert actions() == ["tenant-create"]


def test_a_name_that_is_taken_or_wrong_is_said_at_its_field(admin: Client, tenant: Tenant) -> None:
    data = {**LIMITS, "allowedHosts": "", "secretHeaders": ""}
    assert list_errors(admin.post("/tenants/new/", {"name": tenant.name, **data})) == {"name": "must be new"}
    assert "lower-case" in list_errors(admin.post("/tenants/new/", {"name": "Acme!", **data}))["name"]
    assert Tenant.objects.count() == 1
    assert actions() == []


# --- its limits -------------------------------------------------------------------------------------------------


def test_its_limits_are_changed(admin: Client, tenant: Tenant) -> None:
    assert admin.post(of(tenant, "limits/"), with_shown(admin, tenant, **LIMITS)).status_code == 303
    changed = refreshed(tenant)
    assert (changed.max_in_flight, changed.max_pending, changed.requests_per_minute) == (50, 2000, 600)
    assert changed.allowed_hosts == ["api.example", "partner.example"]
    assert changed.secret_headers == ["x-trace"]
    noted = OperatorAction.across_tenants.get()
    assert (noted.action, noted.detail["max_in_flight"]) == ("tenant-change", 50)


def test_sending_them_as_they_are_changes_and_notes_nothing(admin: Client, tenant: Tenant) -> None:
    answer = admin.post(of(tenant, "limits/"), with_shown(admin, tenant), follow=True)
    assert "Nothing to change" in answer.content.decode()
    assert actions() == []


def test_what_another_has_changed_since_the_page_was_opened_is_not_written_over(
    admin: Client, tenant: Tenant
) -> None:
    update_tenant(tenant.pk, allowed_hosts=["good.test", "evil.test"])
    typed = with_shown(admin, tenant, maxPending="5")
    update_tenant(tenant.pk, allowed_hosts=["good.test"])
    refused = admin.post(of(tenant, "limits/"), typed, HTTP_ACCEPT="text/html")
    assert refused.status_code == 409
    assert (refreshed(tenant).allowed_hosts, tenant.max_pending) == (["good.test"], 1_000_000)
    assert actions() == []
    page = refused.content.decode()
    assert "somebody else changed these settings" in page
    assert '<span class="tag">good.test</span>' in page
    assert '<span class="tag">evil.test</span>' not in page
    assert "good.test\nevil.test</textarea>" in page
    assert 'name="maxPending" inputmode="numeric" value="5"' in page


def test_what_is_sent_again_after_the_change_was_shown_is_saved(admin: Client, tenant: Tenant) -> None:
    typed = with_shown(admin, tenant, maxPending="5")
    update_tenant(tenant.pk, max_pending=7)
    refused = admin.post(of(tenant, "limits/"), typed)
    again = {**typed, "shown": refused.context["edit_token"]}
    assert admin.post(of(tenant, "limits/"), again).status_code == 303
    assert refreshed(tenant).max_pending == 5


def test_a_mistake_that_is_mended_does_not_hide_what_another_has_changed(
    admin: Client, tenant: Tenant
) -> None:
    typed = with_shown(admin, tenant, maxPending="many")
    update_tenant(tenant.pk, max_pending=7)
    mistaken = admin.post(of(tenant, "limits/"), typed)
    assert mistaken.status_code == 400
    mended = {**typed, "maxPending": "5", "shown": mistaken.context["edit_token"]}
    assert admin.post(of(tenant, "limits/"), mended).status_code == 409


def test_a_form_that_does_not_say_what_it_showed_changes_nothing(admin: Client, tenant: Tenant) -> None:
    assert admin.post(of(tenant, "limits/"), LIMITS).status_code == 409
    assert refreshed(tenant).max_in_flight == 1000


def test_each_fault_is_said_at_its_field_and_what_was_typed_stays(admin: Client, tenant: Tenant) -> None:
    bad = {
        **LIMITS,
        "maxInFlight": "0",
        "maxPending": "many",
        "requestsPerMinute": "",
        "allowedHosts": "a\n" + "b" * 300,
    }
    response = admin.post(of(tenant, "limits/"), bad, HTTP_ACCEPT="text/html")
    assert list_errors(response, "limits_form") == {
        "maxInFlight": "must be at least 1",
        "maxPending": "must be a whole number",
        "requestsPerMinute": "must be a whole number",
        "allowedHosts": "line 2: must be at most 253 characters",
    }
    assert 'value="many"' in response.content.decode()
    assert refreshed(tenant).max_in_flight == 1000


def test_a_nul_is_refused_and_no_error_of_the_database(admin: Client, tenant: Tenant) -> None:
    assert (
        "NUL"
        in list_errors(admin.post(of(tenant, "limits/"), {**LIMITS, "allowedHosts": "a\0b"}), "limits_form")[
            "allowedHosts"
        ]
    )


def test_a_repeated_line_is_stored_once(admin: Client, tenant: Tenant) -> None:
    typed = with_shown(admin, tenant, allowedHosts="api.example\n\napi.example")
    assert admin.post(of(tenant, "limits/"), typed).status_code == 303
    assert refreshed(tenant).allowed_hosts == ["api.example"]


def test_a_field_that_was_not_sent_stays_empty(admin: Client) -> None:
    response = admin.post("/tenants/new/", {"name": "acme"}, HTTP_ACCEPT="text/html")
    assert list_errors(response)["maxPending"] == "must be a whole number"
    assert 'name="maxPending" inputmode="numeric" value=""' in response.content.decode()


# --- its secret -------------------------------------------------------------------------------------------------


def test_its_secret_is_set_replaced_and_cleared_and_never_shown(admin: Client, tenant: Tenant) -> None:
    pages = b""
    for secret in (SECRET, SECRET[:-4] + "AAAA"):
        pages += admin.post(of(tenant, "secret/"), {"signingSecret": secret}, follow=True).content
        stored = refreshed(tenant).signing_secret
        assert decrypt(stored) == secret
        assert stored != secret
    assert b"Clear secret" in admin.get(of(tenant, "secret/clear/")).content
    admin.post(of(tenant, "secret/clear/"))
    assert refreshed(tenant).signing_secret == ""
    assert actions() == ["tenant-secret-set", "tenant-secret-rotate", "tenant-secret-clear"]
    assert SECRET.encode() not in pages
    assert SECRET not in str(list(OperatorAction.across_tenants.values()))


@pytest.mark.parametrize("given", ["", "hush", "whsec_short"])
def test_a_secret_that_is_none_is_refused_without_being_shown_again(
    admin: Client, tenant: Tenant, given: str
) -> None:
    response = admin.post(of(tenant, "secret/"), {"signingSecret": given}, HTTP_ACCEPT="text/html")
    assert "signingSecret" in list_errors(response, "secret_form")
    assert refreshed(tenant).signing_secret == ""
    assert not given or f'value="{given}"' not in response.content.decode()


# --- active or not ----------------------------------------------------------------------------------------------


def test_deactivating_takes_its_typed_name_and_refuses_its_keys(admin: Client, tenant: Tenant) -> None:
    _, text = create_key(tenant.tenant_id, ["read"])
    assert "1 active" in admin.get(of(tenant, "deactivate/")).content.decode()
    admin.post(of(tenant, "deactivate/"), {"word": "yes"})
    assert refreshed(tenant).active
    admin.post(of(tenant, "deactivate/"), {"word": tenant.name})
    assert find_key(text) is None
    assert "Its keys are refused" in admin.get(of(tenant)).content.decode()
    admin.post(of(tenant, "activate/"))
    assert find_key(text)
    assert actions() == ["tenant-deactivate", "tenant-activate"]


def test_what_is_so_already_is_not_noted(admin: Client, tenant: Tenant) -> None:
    for path in ("activate/", "secret/clear/"):
        answer = admin.post(of(tenant, path), follow=True)
        assert "Nothing to change" in answer.content.decode()
    update_tenant(tenant.pk, active=False)
    admin.post(of(tenant, "deactivate/"), {"word": tenant.name})
    assert actions() == []


# --- its namespaces ---------------------------------------------------------------------------------------------


def test_a_namespace_is_made_and_its_shards_are_fixed(admin: Client, tenant: Tenant) -> None:
    admin.post(of(tenant, "namespaces/"), {"name": "invoices", "numShards": "64"})
    assert Namespace.objects.for_tenant(tenant.tenant_id).get(name="invoices").num_shards == 64
    again = admin.post(
        of(tenant, "namespaces/"), {"name": "invoices", "numShards": "32"}, HTTP_ACCEPT="text/html"
    )
    assert "fixed at 64" in list_errors(again, "namespace_form")[""]
    assert "fixed at 64" in again.content.decode()
    assert actions() == ["namespace-create"]


def test_a_namespace_that_is_there_is_not_noted_as_made(admin: Client, tenant: Tenant) -> None:
    NamespaceFactory(tenant=tenant, name="invoices", num_shards=64)
    given = {"name": "invoices", "numShards": "64"}
    answer = admin.post(of(tenant, "namespaces/"), given, follow=True)
    assert "Namespace invoices already exists with 64 shards" in answer.content.decode()
    assert actions() == []


@pytest.mark.parametrize(
    ("data", "field"),
    [({"name": "In voices", "numShards": "16"}, "name"), ({"name": "a", "numShards": "4097"}, "numShards")],
)
def test_a_wrong_namespace_is_said_at_its_field(
    admin: Client, tenant: Tenant, data: dict[str, str], field: str
) -> None:
    assert set(list_errors(admin.post(of(tenant, "namespaces/"), data), "namespace_form")) == {field}


# --- who may ----------------------------------------------------------------------------------------------------

WRITES: list[tuple[str, dict[str, str]]] = [
    ("limits/", LIMITS),
    ("secret/", {"signingSecret": SECRET}),
    ("secret/clear/", {}),
    ("activate/", {}),
    ("deactivate/", {"word": "acme"}),
    ("namespaces/", {"name": "invoices", "numShards": "64"}),
    ("keys/new/", {"scopes": "read"}),
]


@pytest.mark.parametrize("who", ["viewer", "operator", "outsider"])
def test_whoever_is_no_admin_changes_nothing(
    who: str, tenant: Tenant, request: pytest.FixtureRequest
) -> None:
    client: Client = request.getfixturevalue(who)
    before = Tenant.objects.values().get()
    for path, data in [
        *((of(tenant, path), data) for path, data in WRITES),
        ("/tenants/new/", {"name": "mine"}),
    ]:
        assert client.post(path, data).status_code == (302 if who == "outsider" else 403), path
    assert Tenant.objects.values().get() == before
    assert not Namespace.objects.for_tenant(tenant.tenant_id).exists()
    assert actions() == []


def test_a_viewer_reads_the_limits_and_sees_no_form(viewer: Client, tenant: Tenant) -> None:
    page = viewer.get(of(tenant)).content.decode()
    assert "60,000" in page
    for path in ("limits/", "secret/", "namespaces/", "keys/new/", "deactivate/"):
        assert of(tenant, path) not in page


def test_a_tenant_that_is_not_there_is_not_found(admin: Client) -> None:
    missing = f"/tenants/{new_id()}/"
    assert admin.get(missing).status_code == 404
    assert admin.post(f"{missing}limits/", LIMITS).status_code == 404
    assert admin.post(f"{missing}activate/").status_code == 404
    assert actions() == []

"""Admins create, limit and deactivate tenants. The rules are those of the API; each error is at its field."""

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
from tests.contracts.timer_stores.memory_fleet import MemoryFleet
from tests.factories import NamespaceFactory, ServiceCallFactory, TenantFactory

pytestmark = pytest.mark.django_db

LIMITS = {
    "maxInFlight": "50",
    "maxPending": "2000",
    "requestsPerMinute": "600",
    "bytesPerMinute": "60000",
    "maxStoredBytes": "6000000",
    "allowedHosts": "api.example\n\n  Partner.Example  \n",
    "secretHeaders": "x-trace",
}
SECRET = "whsec_" + "c2VjcmV0" * 5


def build_url(tenant: Tenant, rest: str = "") -> str:
    return f"/tenants/{tenant.tenant_id}/{rest}"


def list_actions() -> list[str]:
    return list(OperatorAction.across_tenants.order_by("id").values_list("action", flat=True))


def fill_limits_form(client: Client, tenant: Tenant, **typed: str) -> dict[str, str]:
    """The form of its limits, as a browser sends it: what is typed, and what was shown."""
    page = client.get(build_url(tenant)).context
    shown = {field.html_name: str(field.value()) for field in page["limits_form"]}
    return {**shown, "shown": page["edit_token"], **typed}


def refresh(tenant: Tenant) -> Tenant:
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


def test_an_empty_list_shows_the_next_step(admin: Client, viewer: Client) -> None:
    assert "/tenants/new/" in admin.get("/tenants/").content.decode()
    page = viewer.get("/tenants/").content.decode()
    assert "No tenants yet" in page
    assert "/tenants/new/" not in page


def test_tenants_are_listed_with_their_pending_calls_and_keys(
    viewer: Client, tenant: Tenant, intruder: Tenant
) -> None:
    for status in ("Scheduled", "Scheduled", "Succeeded"):
        ServiceCallFactory(tenant_id=tenant.tenant_id, status=status)
    create_key(tenant.tenant_id, ["read"])
    create_key(None, ["read"])
    rows = {row.name: (pending, keys) for row, pending, keys in viewer.get("/tenants/").context["rows"]}
    assert rows == {"acme": (2, 1), "intruder": (0, 0)}


def test_the_page_of_a_tenant_shows_what_it_uses_beside_its_limits(viewer: Client, tenant: Tenant) -> None:
    update_tenant(tenant.pk, max_pending=3, max_in_flight=20)
    Tenant.objects.filter(pk=tenant.pk).update(stored_bytes=5_000_000, max_stored_bytes=50_000_000)
    for status in ("Scheduled", "Scheduled", "Scheduled", "Running"):
        ServiceCallFactory(tenant_id=tenant.tenant_id, status=status)
    response = viewer.get(build_url(tenant))
    rows = {row.name: row for row in response.context["usage"]}
    assert [(row.used, row.limit, row.share) for row in rows.values()] == [
        (1, 20, "5 %"), (3, 3, "100 %"), (5_000_000, 50_000_000, "10 %"),
    ]  # fmt: skip
    assert [row.is_high for row in rows.values()] == [False, True, False]
    page = " ".join(response.content.decode().split())
    assert f'<a href="/calls/?tenant={tenant.pk}&amp;status=Running">1</a> of 20' in page
    assert "of 47.7 MiB" in page


def test_the_list_has_pages_in_order_of_name(viewer: Client) -> None:
    for number in range(30):
        TenantFactory(name=f"t{number:02}")
    first = viewer.get("/tenants/").context
    rest = viewer.get(f"/tenants/?after={first['next_after']}").context
    names = [row[0].name for page in (first, rest) for row in page["rows"]]
    assert names == [f"t{number:02}" for number in range(30)]


def test_roles_are_explained_with_a_link_for_admins(admin: Client, operator: Client) -> None:
    assert "/admin/auth/user/" in admin.get("/tenants/").content.decode()
    assert "/admin/auth/user/" not in operator.get("/tenants/").content.decode()


# --- making one -------------------------------------------------------------------------------------------------


def test_an_admin_creates_a_tenant(admin: Client) -> None:
    response = admin.post(
        "/tenants/new/", {"name": "acme", **LIMITS, "allowedHosts": "", "secretHeaders": ""}
    )
    made = Tenant.objects.get(name="acme")
    assert (response.status_code, response["Location"]) == (303, f"/tenants/{made.tenant_id}/")
    assert (made.max_in_flight, made.max_pending, made.allowed_hosts) == (50, 2000, [])
    assert Namespace.objects.for_tenant(made.tenant_id).get().name == "default"
    assert list_actions() == ["tenant-create"]


def test_a_taken_or_invalid_name_is_reported_at_its_field(admin: Client, tenant: Tenant) -> None:
    data = {**LIMITS, "allowedHosts": "", "secretHeaders": ""}
    assert list_errors(admin.post("/tenants/new/", {"name": tenant.name, **data})) == {"name": "must be new"}
    assert "lower-case" in list_errors(admin.post("/tenants/new/", {"name": "Acme!", **data}))["name"]
    assert Tenant.objects.count() == 1
    assert list_actions() == []


# --- its limits -------------------------------------------------------------------------------------------------


def test_the_limits_of_a_tenant_are_changed(admin: Client, tenant: Tenant) -> None:
    assert (
        admin.post(build_url(tenant, "limits/"), fill_limits_form(admin, tenant, **LIMITS)).status_code == 303
    )
    changed = refresh(tenant)
    assert (changed.max_in_flight, changed.max_pending, changed.requests_per_minute) == (50, 2000, 600)
    assert changed.allowed_hosts == ["api.example", "partner.example"]
    assert changed.secret_headers == ["x-trace"]
    noted = OperatorAction.across_tenants.get()
    assert (noted.action, noted.detail["max_in_flight"]) == ("tenant-change", "1000 → 50")


def test_saving_without_changes_changes_and_records_nothing(admin: Client, tenant: Tenant) -> None:
    answer = admin.post(build_url(tenant, "limits/"), fill_limits_form(admin, tenant), follow=True)
    assert "Nothing to change" in answer.content.decode()
    assert list_actions() == []


def test_changes_that_somebody_else_has_made_since_are_not_overwritten(admin: Client, tenant: Tenant) -> None:
    update_tenant(tenant.pk, allowed_hosts=["good.test", "evil.test"])
    typed = fill_limits_form(admin, tenant, maxPending="5")
    update_tenant(tenant.pk, allowed_hosts=["good.test"])
    refused = admin.post(build_url(tenant, "limits/"), typed, HTTP_ACCEPT="text/html")
    assert refused.status_code == 409
    assert (refresh(tenant).allowed_hosts, tenant.max_pending) == (["good.test"], 1_000_000)
    assert list_actions() == []
    page = refused.content.decode()
    assert "somebody else changed these settings" in page
    assert '<span class="tag">good.test</span>' in page
    assert '<span class="tag">evil.test</span>' not in page
    assert "good.test\nevil.test</textarea>" in page
    assert 'name="maxPending" inputmode="numeric" value="5"' in page


def test_saving_again_after_the_change_was_shown_overwrites_it(admin: Client, tenant: Tenant) -> None:
    typed = fill_limits_form(admin, tenant, maxPending="5")
    update_tenant(tenant.pk, max_pending=7)
    refused = admin.post(build_url(tenant, "limits/"), typed)
    again = {**typed, "shown": refused.context["edit_token"]}
    assert admin.post(build_url(tenant, "limits/"), again).status_code == 303
    assert refresh(tenant).max_pending == 5


def test_correcting_an_error_does_not_hide_a_concurrent_change(admin: Client, tenant: Tenant) -> None:
    typed = fill_limits_form(admin, tenant, maxPending="many")
    update_tenant(tenant.pk, max_pending=7)
    mistaken = admin.post(build_url(tenant, "limits/"), typed)
    assert mistaken.status_code == 400
    mended = {**typed, "maxPending": "5", "shown": mistaken.context["edit_token"]}
    assert admin.post(build_url(tenant, "limits/"), mended).status_code == 409


def test_a_form_without_an_edit_token_changes_nothing(admin: Client, tenant: Tenant) -> None:
    assert admin.post(build_url(tenant, "limits/"), LIMITS).status_code == 409
    assert refresh(tenant).max_in_flight == 1000


def test_each_error_is_at_its_field_and_the_input_is_kept(admin: Client, tenant: Tenant) -> None:
    bad = {
        **LIMITS,
        "maxInFlight": "0",
        "maxPending": "many",
        "requestsPerMinute": "",
        "bytesPerMinute": "1",
        "allowedHosts": "a\n" + "b" * 300,
    }
    response = admin.post(build_url(tenant, "limits/"), bad, HTTP_ACCEPT="text/html")
    assert list_errors(response, "limits_form") == {
        "maxInFlight": "must be at least 1",
        "maxPending": "must be a whole number",
        "bytesPerMinute": "must be at least 1024",
        "requestsPerMinute": "must be a whole number",
        "allowedHosts": "line 2: must be at most 253 characters",
    }
    assert 'value="many"' in response.content.decode()
    assert refresh(tenant).max_in_flight == 1000


def test_a_nul_character_is_refused_before_it_reaches_the_database(admin: Client, tenant: Tenant) -> None:
    assert (
        "NUL"
        in list_errors(
            admin.post(build_url(tenant, "limits/"), {**LIMITS, "allowedHosts": "a\0b"}), "limits_form"
        )["allowedHosts"]
    )


def test_a_repeated_line_is_stored_once(admin: Client, tenant: Tenant) -> None:
    typed = fill_limits_form(admin, tenant, allowedHosts="api.example\n\napi.example")
    assert admin.post(build_url(tenant, "limits/"), typed).status_code == 303
    assert refresh(tenant).allowed_hosts == ["api.example"]


def test_a_field_that_was_not_sent_stays_empty(admin: Client) -> None:
    response = admin.post("/tenants/new/", {"name": "acme"}, HTTP_ACCEPT="text/html")
    assert list_errors(response)["maxPending"] == "must be a whole number"
    assert 'name="maxPending" inputmode="numeric" value=""' in response.content.decode()


# --- its secret -------------------------------------------------------------------------------------------------


def test_the_signing_secret_is_set_replaced_and_cleared_and_never_shown(
    admin: Client, tenant: Tenant
) -> None:
    pages = b""
    for secret in (SECRET, SECRET[:-4] + "AAAA"):
        pages += admin.post(build_url(tenant, "secret/"), {"signingSecret": secret}, follow=True).content
        stored = refresh(tenant).signing_secret
        assert decrypt(stored) == secret
        assert stored != secret
    assert b"Clear secret" in admin.get(build_url(tenant, "secret/clear/")).content
    admin.post(build_url(tenant, "secret/clear/"))
    assert refresh(tenant).signing_secret == ""
    assert list_actions() == ["tenant-secret-set", "tenant-secret-rotate", "tenant-secret-clear"]
    assert SECRET.encode() not in pages
    assert SECRET not in str(list(OperatorAction.across_tenants.values()))


@pytest.mark.parametrize("given", ["", "hush", "whsec_short"])
def test_an_invalid_secret_is_refused_and_not_shown_again(admin: Client, tenant: Tenant, given: str) -> None:
    response = admin.post(build_url(tenant, "secret/"), {"signingSecret": given}, HTTP_ACCEPT="text/html")
    assert "signingSecret" in list_errors(response, "secret_form")
    assert refresh(tenant).signing_secret == ""
    assert not given or f'value="{given}"' not in response.content.decode()


# --- active or not ----------------------------------------------------------------------------------------------


def test_deactivating_requires_the_typed_name_and_refuses_the_keys(admin: Client, tenant: Tenant) -> None:
    _, text = create_key(tenant.tenant_id, ["read"])
    assert "1 active" in admin.get(build_url(tenant, "deactivate/")).content.decode()
    admin.post(build_url(tenant, "deactivate/"), {"word": "yes"})
    assert refresh(tenant).active
    admin.post(build_url(tenant, "deactivate/"), {"word": tenant.name})
    assert find_key(text) is None
    assert "Its keys are refused" in admin.get(build_url(tenant)).content.decode()
    admin.post(build_url(tenant, "activate/"))
    assert find_key(text)
    assert list_actions() == ["tenant-deactivate", "tenant-activate"]


def test_an_action_that_changes_nothing_is_not_recorded(admin: Client, tenant: Tenant) -> None:
    for path in ("activate/", "secret/clear/"):
        answer = admin.post(build_url(tenant, path), follow=True)
        assert "Nothing to change" in answer.content.decode()
    update_tenant(tenant.pk, active=False)
    admin.post(build_url(tenant, "deactivate/"), {"word": tenant.name})
    assert list_actions() == []


# --- its namespaces ---------------------------------------------------------------------------------------------


def test_a_namespace_is_created_and_its_shards_are_fixed(admin: Client, tenant: Tenant) -> None:
    admin.post(build_url(tenant, "namespaces/"), {"name": "invoices", "numShards": "64"})
    assert Namespace.objects.for_tenant(tenant.tenant_id).get(name="invoices").num_shards == 64
    again = admin.post(
        build_url(tenant, "namespaces/"), {"name": "invoices", "numShards": "32"}, HTTP_ACCEPT="text/html"
    )
    assert "fixed at 64" in list_errors(again, "namespace_form")[""]
    assert "fixed at 64" in again.content.decode()
    assert list_actions() == ["namespace-create"]


def test_a_namespace_is_created_by_its_size(admin: Client, tenant: Tenant) -> None:
    page = admin.get(build_url(tenant)).content.decode()
    assert '<option value="small" selected>small: 16 shards</option>' in page
    made = admin.post(
        build_url(tenant, "namespaces/"), {"name": "invoices", "size": "large", "numShards": ""}, follow=True
    )
    assert "Namespace invoices created with 1024 shards" in made.content.decode()
    assert "<td>large</td>" in made.content.decode()
    both = admin.post(build_url(tenant, "namespaces/"), {"name": "bills", "size": "large", "numShards": "8"})
    assert list_errors(both, "namespace_form") == {"numShards": "must not be given together with size"}


def test_a_namespace_can_be_created_in_a_timer_store(
    admin: Client, tenant: Tenant, fleet: MemoryFleet
) -> None:
    assert "<option>fleet</option>" in admin.get(build_url(tenant)).content.decode()
    given = {"name": "alerts", "size": "medium", "store": "fleet"}
    made = admin.post(build_url(tenant, "namespaces/"), given, follow=True).content.decode()
    assert "Namespace alerts created with 256 shards in fleet" in made
    assert 'href="/timers/stores/?store=fleet">fleet</a>' in made
    (declared,) = fleet.tables.namespaces.values()
    assert declared.num_shards == 256
    assert OperatorAction.across_tenants.get().detail == {"name": "alerts", "shards": 256, "store": "fleet"}
    same = admin.post(build_url(tenant, "namespaces/"), {**given, "size": "", "store": ""}, follow=True)
    assert "Namespace alerts already exists with 256 shards in fleet" in same.content.decode()


def test_a_store_that_cannot_be_used_is_reported_at_the_form(
    admin: Client, tenant: Tenant, fleet: MemoryFleet
) -> None:
    given = {"name": "alerts", "size": "small", "store": "away"}
    refused = admin.post(build_url(tenant, "namespaces/"), given, HTTP_ACCEPT="text/html")
    assert "is not available" in list_errors(refused, "namespace_form")[""]
    assert "<option selected>away</option>" in refused.content.decode()
    unknown = admin.post(build_url(tenant, "namespaces/"), {**given, "store": "other"})
    assert list_errors(unknown, "namespace_form") == {"store": "must be one of fleet, away"}
    assert not Namespace.objects.for_tenant(tenant.tenant_id).exists()
    assert list_actions() == []


def test_without_timer_stores_the_page_does_not_mention_any(admin: Client, tenant: Tenant) -> None:
    NamespaceFactory(tenant=tenant)
    assert "imer store" not in admin.get(build_url(tenant)).content.decode()


def test_an_existing_namespace_is_not_recorded_as_created(admin: Client, tenant: Tenant) -> None:
    NamespaceFactory(tenant=tenant, name="invoices", num_shards=64)
    given = {"name": "invoices", "numShards": "64"}
    answer = admin.post(build_url(tenant, "namespaces/"), given, follow=True)
    assert "Namespace invoices already exists with 64 shards" in answer.content.decode()
    assert list_actions() == []


@pytest.mark.parametrize(
    ("data", "field"),
    [({"name": "In voices", "numShards": "16"}, "name"), ({"name": "a", "numShards": "4097"}, "numShards")],
)
def test_an_invalid_namespace_is_reported_at_its_field(
    admin: Client, tenant: Tenant, data: dict[str, str], field: str
) -> None:
    assert set(list_errors(admin.post(build_url(tenant, "namespaces/"), data), "namespace_form")) == {field}


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
def test_only_admins_change_anything(who: str, tenant: Tenant, request: pytest.FixtureRequest) -> None:
    client: Client = request.getfixturevalue(who)
    before = Tenant.objects.values().get()
    for path, data in [
        *((build_url(tenant, path), data) for path, data in WRITES),
        ("/tenants/new/", {"name": "mine"}),
    ]:
        assert client.post(path, data).status_code == (302 if who == "outsider" else 403), path
    assert Tenant.objects.values().get() == before
    assert not Namespace.objects.for_tenant(tenant.tenant_id).exists()
    assert list_actions() == []


def test_a_viewer_reads_the_limits_and_sees_no_form(viewer: Client, tenant: Tenant) -> None:
    page = viewer.get(build_url(tenant)).content.decode()
    assert "60,000" in page
    for path in ("limits/", "secret/", "namespaces/", "keys/new/", "deactivate/"):
        assert build_url(tenant, path) not in page


def test_an_unknown_tenant_is_not_found(admin: Client) -> None:
    missing = f"/tenants/{new_id()}/"
    assert admin.get(missing).status_code == 404
    assert admin.post(f"{missing}limits/", LIMITS).status_code == 404
    assert admin.post(f"{missing}activate/").status_code == 404
    assert list_actions() == []

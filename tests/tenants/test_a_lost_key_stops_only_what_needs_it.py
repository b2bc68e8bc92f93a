"""A key that is missing from ENCRYPTION_KEYS stops only what needs it, with an error that says so."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from eventservice.kernel.ttl_cache import clear_caches
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.keys import create_key
from eventservice.tenants.models import ApiKey, Tenant
from orchestration.commands import RequestSpec
from orchestration.lifecycle import cancel
from orchestration.models import ServiceCall
from tests.orchestration.support import submit

pytestmark = pytest.mark.django_db

LOST = "enc:v1:of-another-key"


@pytest.fixture
def acme() -> Tenant:
    """Return a tenant whose signing secret no key decrypts."""
    clear_caches()
    made = create_tenant("acme")
    Tenant.objects.filter(pk=made.pk).update(signing_secret=LOST)
    return made


@pytest.fixture
def sealed(acme: Tenant) -> str:
    """Return a call that has ended, and whose header no key decrypts."""
    made = submit(acme, request=RequestSpec("GET", "http://target.test/", {"Authorization": "s3cret"}))
    cancel(acme.tenant_id, made)
    call = ServiceCall.objects.for_tenant(acme.tenant_id).get()
    spec = {**call.request_spec, "headers": {"Authorization": {"encrypted": LOST}}}
    ServiceCall.objects.for_tenant(acme.tenant_id).update(request_spec=spec)
    return str(made)


@pytest.fixture
def api(acme: Tenant) -> Client:
    _, key = create_key(acme.tenant_id, list(ApiKey.Scope))
    return Client(headers={"Authorization": f"Bearer {key}"})


@pytest.fixture
def console() -> Client:
    client = Client(headers={"Accept": "text/html"})
    client.force_login(User.objects.create_user("ada", is_staff=True, is_superuser=True))
    return client


def test_the_api_reads_and_accepts_calls(api: Client, acme: Tenant) -> None:
    calls = f"/api/v1/tenants/{acme.pk}/service-calls"
    asked = {"name": "greet", "requestSpec": {"method": "GET", "url": "http://target.test/"}}
    assert api.post(calls, asked, content_type="application/json").status_code == 202
    assert api.get(calls).json()["items"][0]["name"] == "greet"


def test_the_console_shows_its_calls(console: Client, acme: Tenant, sealed: str) -> None:
    for page in (f"/?tenant={acme.pk}", f"/calls/?tenant={acme.pk}", f"/calls/{acme.pk}/{sealed}/"):
        response = console.get(page)
        assert (response.status_code, "acme" in response.content.decode()) == (200, True), page


def test_a_replay_of_an_unreadable_call_is_refused_with_the_reason(
    api: Client, acme: Tenant, sealed: str
) -> None:
    refused = api.post(
        f"/api/v1/tenants/{acme.pk}/service-calls/{sealed}/replay", content_type="application/json"
    )
    assert (refused.status_code, refused.json()["code"]) == (409, "secret_unreadable")
    assert "ENCRYPTION_KEYS" in refused.json()["detail"]


def test_the_console_shows_the_reason(console: Client, acme: Tenant, sealed: str) -> None:
    page = console.post(f"/calls/{acme.pk}/{sealed}/replay/", follow=True)
    assert (page.status_code, "ENCRYPTION_KEYS" in page.content.decode()) == (200, True)

"""Older ENCRYPTION_KEYS can be removed without losing secrets once `manage.py reencrypt` has run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core.management import CommandError, call_command

from eventservice.kernel import secrets
from eventservice.kernel.secrets import Reencryption, decrypt
from eventservice.tenants.directory import create_tenant, update_tenant
from eventservice.tenants.models import Tenant
from execution.redaction import decrypt_headers
from orchestration import lifecycle
from orchestration.commands import RequestSpec
from orchestration.lifecycle import cancel, reencryption
from orchestration.models import ServiceCall
from outbox.models import WebhookEndpoint
from outbox.publishers.webhook.endpoints import create_endpoint
from tests.orchestration.support import read_all_rows, submit

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

OLD, NEW, FOREIGN = (Fernet.generate_key().decode() for _ in range(3))
HEADERS = {"Authorization": "Bearer s3cret", "X-Shown": "yes"}
BODY = {"n": 1.5, "text": "ü", "deep": [None, {"big": 2**53}]}
REQUEST = RequestSpec("POST", "http://target.test/", HEADERS, BODY)


@pytest.fixture
def keys(settings: Any) -> Iterator[Callable[..., None]]:
    def use(*given: str) -> None:
        settings.ENCRYPTION_KEYS = list(given)
        secrets._fernet.cache_clear()

    yield use
    secrets._fernet.cache_clear()


@pytest.fixture
def acme(keys: Callable[..., None]) -> Tenant:
    """A tenant with a secret of each kind under the old key, in a pending call and in a finished one."""
    keys(OLD)
    tenant = create_tenant("acme", signing_secret="whsec_x")
    create_endpoint(tenant.pk, "https://hooks.test/")
    submit(tenant, request=REQUEST)
    cancel(tenant.pk, submit(tenant, request=REQUEST))
    submit(tenant)
    keys(NEW, OLD)
    return tenant


def select_calls() -> Any:
    return ServiceCall.across_tenants.order_by("service_call_id")


def reencrypt() -> str:
    out = StringIO()
    call_command("reencrypt", stdout=out)
    return out.getvalue()


def test_all_secrets_can_be_decrypted_without_the_old_key(acme: Tenant, keys: Callable[..., None]) -> None:
    before = [call.request_spec for call in select_calls()]
    out = reencrypt()
    assert "1 tenants, 1 endpoints and 2 calls" in out
    assert "if every process was restarted since this key came first" in out
    keys(NEW)
    acme.refresh_from_db()
    assert decrypt(acme.signing_secret) == "whsec_x"
    assert decrypt(WebhookEndpoint.objects.for_tenant(acme.pk).get().secret).startswith("whsec_")
    for spec in [call.request_spec for call in select_calls()][:2]:
        assert {**spec, "headers": decrypt_headers(spec["headers"])} == {**before[0], "headers": HEADERS}


def test_only_the_request_of_a_call_changes(acme: Tenant) -> None:
    def read_rows_without_requests() -> Any:
        rows, *rest = read_all_rows()
        return [{**row, "request_spec": None} for row in rows], rest

    before = read_rows_without_requests()
    reencrypt()
    assert read_rows_without_requests() == before


def test_headers_that_became_secret_after_they_were_stored_are_encrypted(
    acme: Tenant, keys: Callable[..., None]
) -> None:
    """Either because more names are recognized, or because the tenant has named them since."""
    call = select_calls().last()
    plain = {"X-Jwt": "s3cret-jwt", "X-Shown": "yes", "Accept": "a/b"}
    call.request_spec["headers"] = plain
    call.save(update_fields=["request_spec"])
    update_tenant(acme.pk, secret_headers=["x-shown"])
    assert "and 3 calls" in reencrypt()
    keys(NEW)
    stored = select_calls().last().request_spec["headers"]
    assert "s3cret-jwt" not in str(stored)
    assert [isinstance(stored[name], dict) for name in plain] == [True, True, False]
    assert decrypt_headers(stored) == plain


def test_a_second_run_writes_nothing(acme: Tenant) -> None:
    reencrypt()
    before = read_all_rows()
    assert "0 tenants, 0 endpoints and 0 calls" in reencrypt()
    assert read_all_rows() == before


def test_an_interrupted_run_is_completed_by_the_next(
    acme: Tenant, keys: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in ("READ_BATCH", "WRITE_BATCH"):
        monkeypatch.setattr(reencryption, size, 1)
    next(lifecycle.reencrypt_calls(Reencryption()))
    assert "1 calls" in reencrypt()
    keys(NEW)
    assert all(decrypt_headers(call.request_spec["headers"]) for call in list(select_calls())[:2])


def test_a_request_that_changes_concurrently_is_not_overwritten(
    acme: Tenant, keys: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = reencryption._read_headers_after

    def read_and_change(*at: Any) -> Any:
        batch = read(*at)
        for call in select_calls():
            ServiceCall.objects.for_tenant(acme.pk).filter(service_call_id=call.service_call_id).update(
                request_spec={**call.request_spec, "body": "changed"}
            )
        return batch

    monkeypatch.setattr(reencryption, "_read_headers_after", read_and_change)
    reencrypt()
    keys(NEW)
    spec = select_calls()[0].request_spec
    assert (spec["body"], decrypt_headers(spec["headers"])) == ("changed", HEADERS)


def test_secrets_that_cannot_be_decrypted_are_named_and_the_others_are_encrypted(
    acme: Tenant, keys: Callable[..., None]
) -> None:
    keys(FOREIGN)
    foreign = submit(acme, request=REQUEST)
    keys(NEW, OLD)
    with pytest.raises(CommandError, match=f"1 secrets .* a header of call {foreign}"):
        reencrypt()
    keys(NEW, FOREIGN)
    assert "1 calls" in reencrypt()
    keys(NEW)
    assert [decrypt_headers(call.request_spec["headers"]) for call in select_calls()] == [
        HEADERS,
        HEADERS,
        {},
        HEADERS,
    ]


def test_an_installation_without_keys_has_nothing_to_do(acme: Tenant, keys: Callable[..., None]) -> None:
    keys()
    Tenant.objects.all().update(signing_secret="")
    WebhookEndpoint.across_tenants.all().delete()
    select_calls().delete()
    submit(acme, request=REQUEST)
    assert "0 tenants, 0 endpoints and 0 calls" in reencrypt()

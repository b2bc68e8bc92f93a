"""The stored hash of a request recognizes repeats, and is no help in guessing the secrets of the request."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.db import connection

from eventservice.kernel.errors import Conflict
from eventservice.kernel.secrets import derive_keys
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant
from orchestration import lifecycle
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.fingerprints import is_sealed
from orchestration.models import ServiceCall
from tests.orchestration.support import URL

pytestmark = pytest.mark.django_db

seal_fingerprints = importlib.import_module(
    "orchestration.migrations.0006_sealed_fingerprints"
).seal_fingerprints


def build_command(tenant: Tenant, secret: str = "hunter2", key: str = "k") -> SubmitServiceCall:
    request = RequestSpec("POST", URL, {"Authorization": secret}, None)
    return SubmitServiceCall(tenant.tenant_id, "call", request, idempotency_key=key)


def submit(command: SubmitServiceCall) -> lifecycle.Submitted:
    (submitted,) = lifecycle.submit([command])
    return submitted


def read_fingerprint(tenant: Tenant, key: str = "k") -> str:
    stored = ServiceCall.objects.for_tenant(tenant.tenant_id).get(idempotency_key=key).request_fingerprint
    assert stored is not None
    return stored


def store_plain_hash(tenant: Tenant, secret: str = "hunter2", key: str = "k") -> None:
    """Store what earlier versions stored."""
    row = ServiceCall.objects.for_tenant(tenant.tenant_id).filter(idempotency_key=key)
    row.update(request_fingerprint=build_command(tenant, secret, key).content_hash)


def test_a_guess_cannot_be_compared_with_a_stored_fingerprint(tenant: Tenant, settings: Any) -> None:
    submit(build_command(tenant))
    stored = read_fingerprint(tenant)
    assert build_command(tenant).content_hash not in stored
    settings.SECRET_KEY = "what somebody without it would try"
    with pytest.raises(Conflict):
        submit(build_command(tenant))
    ServiceCall.objects.for_tenant(tenant.tenant_id).update(idempotency_key="other")
    submit(build_command(tenant))
    assert read_fingerprint(tenant) != stored


def test_equal_requests_have_different_fingerprints(tenant: Tenant) -> None:
    other = create_tenant("other")
    for command in (build_command(tenant), build_command(tenant, key="l"), build_command(other)):
        submit(command)
    stored = {read_fingerprint(tenant), read_fingerprint(tenant, "l"), read_fingerprint(other)}
    assert len(stored) == 3


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_repeat_is_recognized_and_another_request_is_refused(tenant: Tenant, is_plain: bool) -> None:
    first = submit(build_command(tenant))
    if is_plain:
        store_plain_hash(tenant)
    assert submit(build_command(tenant)) == lifecycle.Submitted(first.service_call_id, is_repeat=True)
    with pytest.raises(Conflict) as refused:
        submit(build_command(tenant, "hunter3"))
    assert refused.value.code == "idempotency_conflict"


def test_repeats_within_one_batch_are_recognized(tenant: Tenant) -> None:
    first, second = lifecycle.submit([build_command(tenant), build_command(tenant)])
    assert second == lifecycle.Submitted(first.service_call_id, is_repeat=True)
    with pytest.raises(Conflict):
        lifecycle.submit([build_command(tenant, key="l"), build_command(tenant, "hunter3", key="l")])


def test_a_repeat_is_recognized_while_the_secret_key_that_was_replaced_is_known(
    tenant: Tenant, settings: Any
) -> None:
    first = submit(build_command(tenant))
    settings.SECRET_KEY_FALLBACKS = ["older", settings.SECRET_KEY]
    settings.SECRET_KEY = "new"
    assert submit(build_command(tenant)).service_call_id == first.service_call_id
    with pytest.raises(Conflict):
        submit(build_command(tenant, "hunter3"))


def test_the_encryption_keys_do_not_matter(tenant: Tenant, settings: Any) -> None:
    first = submit(build_command(tenant))
    settings.ENCRYPTION_KEYS = ["J64ZHFpCWFlS9zT7y5zxuQN1Gb09y7cucne_EhuWyDM="]
    assert submit(build_command(tenant)).service_call_id == first.service_call_id


def test_a_key_serves_one_purpose(settings: Any) -> None:
    assert derive_keys("a") != derive_keys("b")
    assert settings.SECRET_KEY.encode() not in derive_keys("a")


def test_the_migration_replaces_plain_hashes_and_repeats_still_match(tenant: Tenant) -> None:
    other = create_tenant("other")
    first = {}
    for owner, count in ((tenant, 5), (other, 2)):
        for number in range(count):
            key = f"k{number}"
            first[owner.pk, key] = submit(build_command(owner, key=key)).service_call_id
            if number:
                store_plain_hash(owner, key=key)
    lifecycle.submit([SubmitServiceCall(tenant.tenant_id, "no key", RequestSpec("GET", URL))])
    untouched = read_fingerprint(tenant, "k0")
    for _ in range(2):  # it can be repeated
        seal_fingerprints(apps, SimpleNamespace(connection=connection))
        assert read_fingerprint(tenant, "k0") == untouched
        for owner in (tenant, other):
            for number in range(5 if owner is tenant else 2):
                key = f"k{number}"
                assert is_sealed(read_fingerprint(owner, key))
                assert submit(build_command(owner, key=key)).service_call_id == first[owner.pk, key]
    with pytest.raises(Conflict):
        submit(build_command(tenant, "hunter3", "k3"))
    assert ServiceCall.across_tenants.filter(name="no key", request_fingerprint=None).count() == 1


def test_the_migration_goes_on_after_a_full_batch(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(seal_fingerprints.__globals__, "BATCH", 2)
    for number in range(5):
        submit(build_command(tenant, key=f"k{number}"))
        store_plain_hash(tenant, key=f"k{number}")
    seal_fingerprints(apps, SimpleNamespace(connection=connection))
    assert all(is_sealed(read_fingerprint(tenant, f"k{number}")) for number in range(5))

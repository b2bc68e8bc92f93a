"""A call that must not be sent fails with an Egress error, and affects nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from eventservice.kernel.ttl_cache import clear_caches
from eventservice.tenants.models import Tenant
from orchestration.commands import RequestSpec
from orchestration.models import ServiceCall
from tests.orchestration.support import FakeEgress, build_engine, get_call, get_status, list_attempts, submit

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


def test_a_call_to_a_host_that_is_not_allowed_fails(tenant: Any) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(allowed_hosts=["Fine.test"])
    clear_caches()
    refused = submit(tenant, request=RequestSpec("GET", "http://else.test/"))
    allowed = submit(tenant, request=RequestSpec("GET", "http://FINE.test/"))
    egress = FakeEgress()
    engine = build_engine(egress)

    assert engine.poll_now().recorded == 1

    assert [attempt.url for attempt in egress.sent] == ["http://FINE.test/"]
    assert get_call(tenant, refused).outcome_meta["errorMeta"]["kind"] == "Egress"
    assert list_attempts(tenant, refused)[0].error_kind == "Egress"
    assert (get_status(tenant, refused), get_status(tenant, allowed)) == ("Failed", "Running")
    assert len(engine.in_flight) == 1


def test_a_call_with_a_secret_that_cannot_be_decrypted_fails(tenant: Any) -> None:
    sealed = submit(tenant, request=RequestSpec("GET", "http://target.test/", {"Authorization": "s3cret"}))
    call = ServiceCall.objects.for_tenant(tenant.tenant_id).filter(service_call_id=sealed)
    spec = call.get().request_spec
    spec["headers"]["Authorization"] = {"encrypted": "enc:v1:of-another-key"}
    call.update(request_spec=spec)
    fine = submit(tenant)
    egress = FakeEgress()

    build_engine(egress).poll_now()

    assert len(egress.sent) == 1
    meta = get_call(tenant, sealed).outcome_meta["errorMeta"]
    assert (meta["kind"], "ENCRYPTION_KEYS" in meta["message"]) == ("Egress", True)
    assert (get_status(tenant, sealed), get_status(tenant, fine)) == ("Failed", "Running")


def delete_tenant_row(tenant: Tenant) -> None:
    Tenant.objects.filter(pk=tenant.pk).delete()


def lose_encryption_key(tenant: Tenant) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(signing_secret="enc:v1:of-another-key")


@pytest.mark.parametrize(
    "breaks", [delete_tenant_row, lose_encryption_key], ids=lambda breaks: str(breaks.__name__)
)
def test_an_unreadable_tenant_does_not_hold_up_others(breaks: Any, tenant: Any, intruder: Any) -> None:
    stuck, fine = [submit(tenant) for _ in range(3)], submit(intruder)
    breaks(tenant)
    clear_caches()
    engine = build_engine(FakeEgress())
    assert engine.poll_now().started == 1
    assert engine.poll_now().started == 0
    assert get_status(intruder, fine) == "Running"
    assert {get_status(tenant, call) for call in stuck} == {"Scheduled"}


def test_outcomes_of_a_tenant_that_became_unreadable_are_recorded(
    tenant: Any,
) -> None:
    service_call_id, egress = submit(tenant), FakeEgress()
    engine = build_engine(egress)
    engine.poll_now()
    lose_encryption_key(tenant)
    clear_caches()
    egress.answer()
    engine.poll_now()
    assert get_status(tenant, service_call_id) == "Succeeded"

"""What must not be sent is not sent: it fails as Egress, and nothing else suffers from it."""

from __future__ import annotations

from typing import Any

import pytest

from eventservice.tenants.directory import clear_profile_cache
from eventservice.tenants.models import Tenant
from orchestration.commands import RequestSpec
from orchestration.models import ServiceCall
from tests.orchestration.support import FakeEgress, call_of, engine_on, log_of, look, status_of, submit

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


def test_a_host_that_the_tenant_may_not_call(tenant: Any) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(allowed_hosts=["Fine.test"])
    clear_profile_cache()
    refused = submit(tenant, request=RequestSpec("GET", "http://else.test/"))
    allowed = submit(tenant, request=RequestSpec("GET", "http://FINE.test/"))
    egress = FakeEgress()
    engine = engine_on(egress)

    assert look(engine).recorded == 1

    assert [attempt.url for attempt in egress.sent] == ["http://FINE.test/"]
    assert call_of(tenant, refused).outcome_meta["errorMeta"]["kind"] == "Egress"
    assert log_of(tenant, refused)[0].error_kind == "Egress"
    assert (status_of(tenant, refused), status_of(tenant, allowed)) == ("Failed", "Running")
    assert len(engine.in_flight) == 1


def test_a_secret_that_no_key_opens(tenant: Any) -> None:
    sealed = submit(tenant, request=RequestSpec("GET", "http://target.test/", {"Authorization": "s3cret"}))
    call = ServiceCall.objects.for_tenant(tenant.tenant_id).filter(service_call_id=sealed)
    spec = call.get().request_spec
    spec["headers"]["Authorization"] = {"encrypted": "enc:v1:of-another-key"}
    call.update(request_spec=spec)
    fine = submit(tenant)
    egress = FakeEgress()

    look(engine_on(egress))

    assert len(egress.sent) == 1
    meta = call_of(tenant, sealed).outcome_meta["errorMeta"]
    assert (meta["kind"], "ENCRYPTION_KEYS" in meta["message"]) == ("Egress", True)
    assert (status_of(tenant, sealed), status_of(tenant, fine)) == ("Failed", "Running")


def forget_the_row(tenant: Tenant) -> None:
    Tenant.objects.filter(pk=tenant.pk).delete()


def lose_the_key(tenant: Tenant) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(signing_secret="enc:v1:of-another-key")


@pytest.mark.parametrize("breaks", [forget_the_row, lose_the_key], ids=lambda breaks: str(breaks.__name__))
def test_a_tenant_that_cannot_be_read_holds_up_nobody_else(breaks: Any, tenant: Any, intruder: Any) -> None:
    stuck, fine = [submit(tenant) for _ in range(3)], submit(intruder)
    breaks(tenant)
    clear_profile_cache()
    engine = engine_on(FakeEgress())
    assert look(engine).started == 1
    assert look(engine).started == 0
    assert status_of(intruder, fine) == "Running"
    assert {status_of(tenant, call) for call in stuck} == {"Scheduled"}


def test_a_tenant_that_cannot_be_read_any_more_does_not_keep_its_results_from_being_recorded(
    tenant: Any,
) -> None:
    service_call_id, egress = submit(tenant), FakeEgress()
    engine = engine_on(egress)
    look(engine)
    lose_the_key(tenant)
    clear_profile_cache()
    egress.answer()
    look(engine)
    assert status_of(tenant, service_call_id) == "Succeeded"

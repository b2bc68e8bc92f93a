"""What must not be sent is not sent: it fails as Egress, and nothing else suffers from it."""

from __future__ import annotations

from typing import Any

import pytest

from eventservice.tenants.models import Tenant
from eventservice.tenants.public import forget_profiles
from orchestration.commands import RequestSpec
from orchestration.models import ServiceCall
from tests.orchestration.support import FakeEgress, call_of, engine_on, log_of, look, status_of, submit

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


def test_a_host_that_the_tenant_may_not_call(tenant: Any) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(allowed_hosts=["Fine.test"])
    forget_profiles()
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

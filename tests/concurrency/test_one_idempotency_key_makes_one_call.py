"""P11. However many submits carry one idempotency key at once, one call is made and all are told its id."""

from __future__ import annotations

from eventservice.tenants.models import Tenant
from orchestration.models import ServiceCall
from tests.concurrency.races import race, story_of, submitted

AT_ONCE = 50


def test_one_idempotency_key_makes_one_call(acme: Tenant) -> None:
    told = race(*[lambda: submitted(acme, idempotency_key="order-1")] * AT_ONCE)

    (call,) = set(told)
    assert ServiceCall.objects.for_tenant(acme.tenant_id).count() == 1
    assert story_of(acme, call) == ["Submitted", "Scheduled"]

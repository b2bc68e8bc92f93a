"""P11. Submissions under one idempotency key at the same moment make one call, and all return its id."""

from __future__ import annotations

from eventservice.tenants.models import Tenant
from orchestration.models import ServiceCall
from tests.concurrency.races import race
from tests.orchestration.support import list_event_types, submit

AT_ONCE = 50


def test_one_idempotency_key_makes_one_call(acme: Tenant) -> None:
    ids = race(*[lambda: submit(acme, idempotency_key="order-1")] * AT_ONCE)

    (call,) = set(ids)
    assert ServiceCall.objects.for_tenant(acme.tenant_id).count() == 1
    assert list_event_types(acme, call) == ["ServiceCallSubmitted", "ServiceCallScheduled"]

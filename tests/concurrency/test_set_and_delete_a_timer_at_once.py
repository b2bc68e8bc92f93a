"""A durable timer that is set and deleted at once: every set succeeds, and every delete finds the timer or nothing."""

from __future__ import annotations

from functools import partial

from eventservice.kernel.errors import NotFound
from eventservice.tenants.models import Tenant
from orchestration import lifecycle
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.models import ServiceCall
from tests.concurrency.races import race

EACH = 4
TIMES = 10
KEY = ("default", "reminder")


def set_timer(tenant: Tenant) -> None:
    for _ in range(TIMES):
        request = RequestSpec("POST", "http://example.test/", {}, {"payload": None})
        lifecycle.set_timer(SubmitServiceCall(tenant.pk, "reminder", request, external_id=KEY[1]))


def delete_timer(tenant: Tenant) -> int:
    found = 0
    for _ in range(TIMES):
        try:
            lifecycle.delete_timer(tenant.pk, *KEY)
            found += 1
        except NotFound:
            pass
    return found


def test_set_and_delete_a_timer_at_once(acme: Tenant) -> None:
    results = race(*[partial(set_timer, acme)] * EACH, *[partial(delete_timer, acme)] * EACH)
    assert results[:EACH] == [None] * EACH
    assert all(isinstance(found, int) for found in results[EACH:])
    calls = ServiceCall.objects.for_tenant(acme.pk)
    assert calls.filter(status="Canceled").count() == sum(results[EACH:])
    assert calls.exclude(status="Canceled").count() <= 1

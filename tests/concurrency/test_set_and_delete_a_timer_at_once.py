"""Some set a durable timer while others delete it: each set is a set, and each delete finds it or nothing."""

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


def set_it(tenant: Tenant) -> None:
    for _ in range(TIMES):
        request = RequestSpec("POST", "http://example.test/", {}, {"payload": None})
        lifecycle.set_timer(SubmitServiceCall(tenant.pk, "reminder", request, external_id=KEY[1]))


def delete_it(tenant: Tenant) -> int:
    found = 0
    for _ in range(TIMES):
        try:
            lifecycle.delete_timer(tenant.pk, *KEY)
            found += 1
        except NotFound:
            pass
    return found


def test_set_and_delete_a_timer_at_once(acme: Tenant) -> None:
    ends = race(*[partial(set_it, acme)] * EACH, *[partial(delete_it, acme)] * EACH)
    assert ends[:EACH] == [None] * EACH
    assert all(isinstance(found, int) for found in ends[EACH:])
    calls = ServiceCall.objects.for_tenant(acme.pk)
    assert calls.filter(status="Canceled").count() == sum(ends[EACH:])
    assert calls.exclude(status="Canceled").count() <= 1

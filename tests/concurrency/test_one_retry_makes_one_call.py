"""However many operators retry a failed call at once, one new call is made, and the others are told."""

from __future__ import annotations

from eventservice.kernel.errors import Conflict
from eventservice.kernel.ids import new_id
from eventservice.tenants.models import Tenant
from orchestration import lifecycle
from orchestration.lifecycle import Submitted
from orchestration.models import ServiceCall
from tests.concurrency.races import ROUNDS, node, race, submitted

AT_ONCE = 6


def test_one_retry_makes_one_call(acme: Tenant) -> None:
    engine = node()
    for _ in range(ROUNDS):
        origin = submitted(acme)
        (started,) = engine.start_due()
        engine.finish(started, status=500)

        told = race(*[lambda origin=origin: lifecycle.retry(acme.tenant_id, origin, new_id())] * AT_ONCE)

        assert sum(isinstance(one, Submitted) for one in told) == 1
        assert sum(isinstance(one, Conflict) for one in told) == AT_ONCE - 1
        replays = ServiceCall.objects.for_tenant(acme.tenant_id).filter(replay_of=origin)
        lifecycle.cancel(acme.tenant_id, replays.get().service_call_id)

"""A failed call that is retried many times at once is replayed once; the other retries are refused."""

from __future__ import annotations

from eventservice.kernel.errors import Conflict
from eventservice.kernel.ids import new_id
from eventservice.tenants.models import Tenant
from orchestration import lifecycle
from orchestration.lifecycle import Submitted
from orchestration.models import ServiceCall
from tests.concurrency.races import ROUNDS, race
from tests.orchestration.support import ManualEngine, build_response, submit

AT_ONCE = 6


def test_one_retry_makes_one_call(acme: Tenant) -> None:
    engine = ManualEngine()
    for _ in range(ROUNDS):
        origin = submit(acme)
        (started,) = engine.start()
        engine.finish((started, build_response(started, 500)))

        results = race(*[lambda origin=origin: lifecycle.retry(acme.tenant_id, origin, new_id())] * AT_ONCE)

        assert sum(isinstance(one, Submitted) for one in results) == 1
        assert sum(isinstance(one, Conflict) for one in results) == AT_ONCE - 1
        replays = ServiceCall.objects.for_tenant(acme.tenant_id).filter(replay_of=origin)
        lifecycle.cancel(acme.tenant_id, replays.get().service_call_id)

"""P2, P3. What an engine had only started when it was frozen is another's by the time it wakes: it is not sent.

Otherwise a target would be asked to do what has been done, or canceled, long ago.
"""

from __future__ import annotations

from eventservice.tenants.directory import create_tenant
from tests.process_harness import Stage, accept, call, until, until_all_have_ended
from timers.models import Node

QUICK = {"NODE_LEASE_SECONDS": "1"}


def test_an_owner_whose_lease_expired_does_not_send(stage: Stage) -> None:
    witness = stage.witness()
    tenant = create_tenant("acme").tenant_id
    accepted = accept(call(tenant, f"{witness.url}/ok") for _ in range(20))
    sleeper = stage.engine("start.committed=stop@1", **QUICK)
    until(lambda: sleeper.frozen, "it has started the calls")
    successor = stage.engine(**QUICK)
    until(lambda: not Node.objects.filter(process_id=sleeper.pid).exists(), "it is reaped")
    until_all_have_ended()

    sleeper.thaw()
    until(lambda: "node_fenced" in sleeper.log, "it sees that it is fenced")
    stage.stop(sleeper, successor)

    assert {name: [one.attempt for one in sent] for name, sent in witness.by_call().items()} == {
        name: [2] for name in accepted
    }

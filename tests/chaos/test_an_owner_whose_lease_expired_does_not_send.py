"""P2, P3: an engine that was frozen after starting calls does not send them when it wakes, since another owns them.

Otherwise a target would be asked to do what has been done, or canceled, long ago.
"""

from __future__ import annotations

from eventservice.tenants.directory import create_tenant
from tests.process_harness import ProcessHarness, build_call, submit_calls, wait_until, wait_until_all_ended
from timers.models import Node

SHORT_LEASE = {"NODE_LEASE_SECONDS": "1"}


def test_an_owner_whose_lease_expired_does_not_send(harness: ProcessHarness) -> None:
    target = harness.start_target()
    tenant = create_tenant("acme").tenant_id
    accepted = submit_calls(build_call(tenant, f"{target.url}/ok") for _ in range(20))
    frozen = harness.start_engine("start.committed=stop@1", **SHORT_LEASE)
    wait_until(lambda: frozen.is_frozen, "it freezes after starting the calls")
    successor = harness.start_engine(**SHORT_LEASE)
    wait_until(lambda: not Node.objects.filter(process_id=frozen.pid).exists(), "the frozen node is reaped")
    wait_until_all_ended()

    frozen.thaw()
    wait_until(lambda: "node_fenced" in frozen.log, "it notices that it is fenced")
    harness.stop(frozen, successor)

    assert {name: [request.attempt for request in sent] for name, sent in target.group_by_call().items()} == {
        name: [2] for name in accepted
    }

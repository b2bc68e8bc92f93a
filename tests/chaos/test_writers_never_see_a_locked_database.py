"""P14: eight processes submit as fast as they can while the engine runs, and none of them is refused because of a lock."""

from __future__ import annotations

import json
import sys

import pytest

from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from tests.process_harness import ProcessHarness, report, wait_until, wait_until_all_ended, wait_until_at_work

WRITERS = 8
WRITER = """
import json, sys, time
import django; django.setup()
from uuid import UUID
from django.db import DatabaseError
from tests.process_harness import build_call, submit_calls
tenant, url, seconds = UUID(sys.argv[1]), sys.argv[2], float(sys.argv[3])
accepted, refused, longest = 0, [], 0.0
end = time.monotonic() + seconds
while (started := time.monotonic()) < end:
    try:
        accepted += len(submit_calls([build_call(tenant, url)]))
    except DatabaseError as error:
        refused.append(str(error))
    longest = max(longest, time.monotonic() - started)
    time.sleep(0.01)
print(json.dumps([accepted, refused, longest]))
"""
WHOLE = pytest.param(600, id="whole", marks=pytest.mark.chaos)


@pytest.mark.parametrize("seconds", [pytest.param(3, id="short"), WHOLE])
def test_writers_never_see_a_locked_database(seconds: int, harness: ProcessHarness) -> None:
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    engine, dispatcher = harness.start_engine(), harness.start_dispatcher()
    wait_until_at_work(engine)
    argv = [sys.executable, "-c", WRITER, str(tenant), f"{target.url}/ok", str(seconds)]
    writers = [harness.start("writer", argv) for _ in range(WRITERS)]
    for writer in writers:
        assert writer.wait(seconds + 120) == 0, writer.log
    wait_until_all_ended()
    harness.stop(engine)

    results = [json.loads(writer.log.splitlines()[-1]) for writer in writers]
    accepted = sum(accepted for accepted, _, _ in results)
    report(f"{accepted} accepted, the slowest in {max(longest for _, _, longest in results):.2f} s")
    assert [refused for _, refused, _ in results] == [[]] * WRITERS
    assert accepted > WRITERS * seconds
    assert dispatcher.is_running
    assert len(target.list_call_ids()) == accepted == ServiceCall.objects.for_tenant(tenant).count()
    wait_until(lambda: engine.exit_code == 0, "the engine has stopped cleanly")

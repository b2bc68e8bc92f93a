"""P14. Eight processes submit as fast as they can while the engine runs: none of them is refused by a lock."""

from __future__ import annotations

import json
import sys

import pytest

from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from tests.process_harness import Stage, at_work, say, until, until_all_have_ended

WRITERS = 8
WRITER = """
import json, sys, time
import django; django.setup()
from uuid import UUID
from django.db import DatabaseError
from tests.process_harness import accept, call
tenant, url, seconds = UUID(sys.argv[1]), sys.argv[2], float(sys.argv[3])
accepted, refused, longest = 0, [], 0.0
end = time.monotonic() + seconds
while (begun := time.monotonic()) < end:
    try:
        accepted += len(accept([call(tenant, url)]))
    except DatabaseError as error:
        refused.append(str(error))
    longest = max(longest, time.monotonic() - begun)
    time.sleep(0.01)
print(json.dumps([accepted, refused, longest]))
"""
WHOLE = pytest.param(600, id="whole", marks=pytest.mark.chaos)


@pytest.mark.parametrize("seconds", [pytest.param(6, id="short"), WHOLE])
def test_writers_never_see_a_locked_database(seconds: int, stage: Stage) -> None:
    witness, tenant = stage.witness(), create_tenant("acme").tenant_id
    engine, dispatcher = stage.engine(), stage.dispatcher()
    at_work(engine)
    argv = [sys.executable, "-c", WRITER, str(tenant), f"{witness.url}/ok", str(seconds)]
    writers = [stage.start("writer", argv) for _ in range(WRITERS)]
    for writer in writers:
        assert writer.wait(seconds + 120) == 0, writer.log
    until_all_have_ended(seconds + 120)
    stage.stop(engine)

    told = [json.loads(writer.log.splitlines()[-1]) for writer in writers]
    accepted = sum(accepted for accepted, _, _ in told)
    say(f"{accepted} accepted, the slowest in {max(longest for _, _, longest in told):.2f} s")
    assert [refused for _, refused, _ in told] == [[]] * WRITERS
    assert accepted > WRITERS * seconds
    assert dispatcher.running
    assert len(witness.calls()) == accepted == ServiceCall.objects.for_tenant(tenant).count()
    until(lambda: engine.exit_code == 0, "the engine has stopped cleanly")

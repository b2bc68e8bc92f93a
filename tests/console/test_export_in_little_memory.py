"""An export needs memory for a few hundred calls, however many it has: a real limit is set on a real process."""

from __future__ import annotations

import sys

import pytest

from eventservice.db.bulk import insert_rows
from eventservice.kernel.ids import new_id
from eventservice.operators.roles import Role
from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from tests.console.conftest import create_client
from tests.factories import NOON
from tests.process_harness import ProcessHarness, harness

__all__ = ["harness"]

CALLS = 10_000
URL_LENGTH = 2000
# The whole export has about 26 MB.
ROOM_MEGABYTES = 18

# Exports all calls with so many MB of address space above what a first export takes. `keep` keeps what it reads.
EXPORT = """
import resource, sys
import django; django.setup()
from django.contrib.auth.models import User
from django.test import Client
kind, megabytes, mode = sys.argv[1:]
client = Client(SERVER_NAME="localhost")
client.force_login(User.objects.get(username="vera"))
def export():
    response = client.get("/calls/export." + kind)
    assert response.status_code == 200, response.content
    return response
first = export()
chunks = iter(first.streaming_content)
next(chunks), next(chunks)  # the first lines of calls
first.close()
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + int(megabytes) * 1024 * 1024
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
lines, kept = 0, []
try:
    for chunk in export().streaming_content:
        lines += chunk.count(b"\\n")
        if mode == "keep":
            kept.append(chunk)
except MemoryError:
    kept.clear()
    print("out of memory")
print(lines, "lines")
"""


def store_calls(count: int) -> None:
    tenant_id = create_tenant("acme").tenant_id
    url = "https://example.test/".ljust(URL_LENGTH, "x")
    row = {
        "tenant_id": tenant_id, "name": "call", "status": "Failed", "submitted_at": NOON, "due_at": NOON,
        "started_at": NOON, "finished_at": NOON, "attempt": 1, "interruptions": 0, "cancel_requested": False, "next_seq": 1,
        "request_spec": {"method": "POST", "url": url, "headers": {}, "body": None}, "namespace": "default",
        "outcome_meta": {},
        "host": "example.test", "timeout_seconds": 30.0, "response_contract": "status", "delivery": "at_least_once",
    }  # fmt: skip
    columns = [*row, "service_call_id", "correlation_id", "execution_id"]
    for _ in range(0, count, 1000):
        rows = [[*row.values(), new_id(), new_id(), new_id()] for _ in range(1000)]
        insert_rows(ServiceCall, columns, rows)


def run_export(harness: ProcessHarness, kind: str, mode: str) -> str:
    argv = [sys.executable, "-c", EXPORT, kind, str(ROOM_MEGABYTES), mode]
    # One arena of malloc: each thread's own would reserve address space that it does not use. Other tests may export, too.
    program = harness.start(f"{kind}-{mode}", argv, MALLOC_ARENA_MAX="1", MAX_EXPENSIVE_READS="8")
    program.wait(100)
    return program.log


@pytest.mark.django_db(transaction=True)
def test_an_export_is_streamed_in_little_memory(harness: ProcessHarness) -> None:
    create_client("vera", role=Role.VIEWER)
    store_calls(CALLS)
    assert f"{CALLS} lines" in run_export(harness, "ndjson", "stream")
    assert f"{CALLS + 1} lines" in run_export(harness, "csv", "stream")
    # The limit is one: whoever keeps the whole export exceeds it.
    kept = run_export(harness, "ndjson", "keep")
    assert "out of memory" in kept or "malloc failure" in kept  # what a driver's TLS library says

"""A6: a process whose memory does not suffice for a batch takes smaller ones, and a call that is too large fails alone."""

from __future__ import annotations

import json
import sys
import time
from typing import Any
from uuid import UUID

import pytest

from eventservice.tenants.directory import create_tenant
from execution.models import HttpExecution
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.models import ServiceCall
from orchestration.states import Status
from tests.process_harness import (
    ProcessHarness,
    Program,
    build_call,
    report,
    submit_calls,
    wait_until,
    wait_until_all_ended,
)

# Sets the limit of the process's address space, in MB above what it has when everything is loaded, and runs manage.py.
LIMITED = """
import resource, sys
from importlib import import_module
import django; django.setup()
from eventservice.runtime import wiring
from django.core.management import execute_from_command_line
build = getattr(wiring, sys.argv[2])
def build_limited():
    role = build()
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + int(sys.argv[1]) * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return role
module = import_module("eventservice.management.commands." + sys.argv[3])
setattr(module, sys.argv[2], build_limited)
execute_from_command_line(["manage.py", sys.argv[3]])
"""
LARGE_BODY_BYTES = 900_000
# Enough for one of the large calls, which takes about twenty times its bytes.
ROOM_MEGABYTES = 45


def start_limited_engine(harness: ProcessHarness, megabytes: int) -> Program:
    # One arena of malloc: each thread's own would reserve address space that it does not use.
    argv = [sys.executable, "-c", LIMITED, str(megabytes), "build_engine", "poll_timers"]
    return harness.start("engine", argv, MALLOC_ARENA_MAX="1")


def build_large(tenant: UUID, url: str, item: Any, size: int = LARGE_BODY_BYTES) -> SubmitServiceCall:
    """Return a call whose body is a list of so many bytes. Parsed, it takes many times as much."""
    body = [item] * (size // (len(json.dumps(item)) + 1))
    return SubmitServiceCall(tenant, "large", RequestSpec("POST", url, {}, body))


def get_errors(tenant: UUID) -> dict[str, dict[str, Any]]:
    failed = ServiceCall.objects.for_tenant(tenant).exclude(status=Status.SUCCEEDED)
    return {str(call.service_call_id): (call.outcome_meta or {})["errorMeta"] for call in failed}


def test_a_batch_shrinks_until_it_fits_and_a_call_that_never_fits_fails(harness: ProcessHarness) -> None:
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    url = f"{target.url}/ok"
    (giant,) = submit_calls([build_large(tenant, url, [], 2_000_000)])
    large = submit_calls(build_large(tenant, url, {"n": 1}) for _ in range(6))
    small = submit_calls(build_call(tenant, url) for _ in range(20))
    engine = start_limited_engine(harness, ROOM_MEGABYTES)
    wait_until_all_ended()

    wait_until(lambda: target.list_call_ids() == {*large, *small}, "the target has recorded all", 10)
    assert target.count_requests() == len(large) + len(small)
    errors = get_errors(tenant)
    assert errors.keys() == {giant}
    error = errors[giant]
    assert (error["kind"], "too little memory" in error["message"]) == ("Memory", True)
    logged = HttpExecution.objects.for_tenant(tenant).filter(service_call_id=giant)
    assert list(logged.values_list("request_method", "request_url", "error_kind")) == [
        ("POST", url, "Memory")
    ]
    assert engine.is_running


@pytest.mark.chaos
def test_small_calls_do_not_wait_for_many_large_ones(harness: ProcessHarness) -> None:
    """The case of the field trial: 160 calls of 0.9 MB each."""
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    url = f"{target.url}/ok"
    large = [
        call
        for _ in range(16)
        for call in submit_calls(build_large(tenant, url, {"n": 1}) for _ in range(10))
    ]
    start_limited_engine(harness, 2 * ROOM_MEGABYTES)
    time.sleep(8)
    submitted_at = time.monotonic()
    small = submit_calls(build_call(tenant, url) for _ in range(20))
    wait_until(lambda: set(small) <= target.list_call_ids(), "the small calls are sent", 60)
    report(f"the small calls were sent after {time.monotonic() - submitted_at:.1f} s")
    wait_until_all_ended()
    assert get_errors(tenant) == {}
    wait_until(lambda: target.list_call_ids() == {*large, *small}, "the target has recorded all", 10)
    assert target.count_requests() == len(large) + len(small)

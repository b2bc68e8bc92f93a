"""A request for which a web worker has too little memory fails alone: a real limit is set on the running worker."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from tests.api.conftest import Api, build_submission, create_api
from tests.process_harness import ProcessHarness, Program, find_children, harness, wait_until

__all__ = ["harness"]

# Parsed, the batch takes many times its bytes.
ROOM_MEGABYTES = 40
BATCH_BYTES = 12_000_000


def start_web(harness: ProcessHarness) -> tuple[Program, str]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = "{}:{}".format(*found.getsockname())
    config = "python:eventservice.runtime.gunicorn_config"
    argv = [
        sys.executable,
        "-m",
        "gunicorn",
        "-c",
        config,
        "eventservice.wsgi",
        "--bind",
        address,
        "--workers",
        "1",
    ]
    # One arena of malloc: each thread's own would reserve address space that it does not use.
    return harness.start("web", argv, MALLOC_ARENA_MAX="1"), f"http://{address}"


def send(url: str, api: Api, path: str, document: Any) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {api.key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}{api.root}{path}", json.dumps(document).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def is_serving(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/livez", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def limit_memory(pid: int, megabytes: int) -> None:
    """Limit the address space of a process to so much more than it has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + megabytes * 2**20
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))


@pytest.mark.django_db(transaction=True)
def test_a_batch_for_which_there_is_too_little_memory_is_refused_alone(harness: ProcessHarness) -> None:
    api = create_api(create_tenant("acme"))
    web, url = start_web(harness)
    wait_until(lambda: is_serving(url), "it serves", 30)
    (worker,) = find_children(web.pid)
    call = build_submission()
    assert send(url, api, "/service-calls/batch", {"items": [call]})[0] == 202
    limit_memory(worker, ROOM_MEGABYTES)
    large = build_submission(requestSpec={**call["requestSpec"], "body": [{"n": 1}] * 1200})
    count = BATCH_BYTES // len(json.dumps(large))
    status, problem = send(url, api, "/service-calls/batch", {"items": [large] * count})
    assert (status, problem["code"]) == (503, "unavailable")
    assert "too little memory" in problem["detail"]
    assert send(url, api, "/service-calls", call)[0] == 202
    assert find_children(web.pid) == [worker]
    assert ServiceCall.objects.for_tenant(api.tenant.tenant_id).count() == 2

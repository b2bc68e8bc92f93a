"""However many clients wait for calls, a web worker is left for the health checks and for everybody else."""

from __future__ import annotations

import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import requests

from eventservice.api import long_requests
from eventservice.db.now import db_now
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.keys import create_key
from tests.factories import ServiceCallFactory
from tests.process_harness import ProcessHarness, Program, harness, report, wait_until

__all__ = ["harness"]

pytestmark = pytest.mark.django_db(transaction=True)

WAIT_SECONDS = 8
CLIENTS = 6


def start_web(harness: ProcessHarness, workers: int, **env: str) -> tuple[Program, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        "-c",
        "python:eventservice.runtime.gunicorn_config",
        "eventservice.wsgi",
        "--workers",
        str(workers),
    ]
    web = harness.start(
        "web", [sys.executable, "-m", "gunicorn", *command, "--bind", f"127.0.0.1:{port}"], **env
    )
    url = f"http://127.0.0.1:{port}"
    wait_until(lambda: is_live(url), "the web server responds")
    return web, url


def is_live(url: str, seconds: float = 5.0) -> bool:
    try:
        return requests.get(f"{url}/livez", timeout=seconds).ok
    except (requests.ConnectionError, requests.Timeout):
        return False


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_health_checks_are_answered_however_many_clients_wait(harness: ProcessHarness, workers: int) -> None:
    tenant = create_tenant("acme")
    call = ServiceCallFactory(tenant_id=tenant.tenant_id, due_at=db_now() + timedelta(hours=1))
    headers = {"Authorization": f"Bearer {create_key(tenant.tenant_id, ['read'])[1]}"}
    web, url = start_web(harness, workers, API_MAX_WAITERS="100")
    address = f"{url}/api/v1/tenants/{tenant.tenant_id}/service-calls/{call.service_call_id}"

    def wait(_: int) -> tuple[float, requests.Response]:
        begin = time.monotonic()
        response = requests.get(address, {"wait": f"{WAIT_SECONDS}s"}, headers=headers, timeout=60)
        return time.monotonic() - begin, response

    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = [clients.submit(wait, number) for number in range(CLIENTS)]
        time.sleep(1)
        begin = time.monotonic()
        assert is_live(url, WAIT_SECONDS)
        report(f"{workers} workers, {CLIENTS} clients wait: /livez took {time.monotonic() - begin:.2f} s")
        assert requests.get(f"{url}/readyz", timeout=WAIT_SECONDS).status_code in (200, 503)
    waits = [answer.result() for answer in answers]
    # A worker is kept for expensive reads, and one for everything else.
    waited = [response for seconds, response in waits if seconds >= WAIT_SECONDS]
    assert len(waited) == workers - 2
    for _, response in waits:
        assert response.json()["status"] == "Scheduled"
        assert ("Retry-After" in response.headers) == (response not in waited)
    assert "too_few_workers" in web.log


@pytest.mark.parametrize(
    ("workers", "max_waiters", "max_reads"),
    [(None, 5, 2), (1, 0, 1), (2, 0, 1), (3, 0, 2), (4, 1, 2), (8, 5, 2), (20, 5, 2)],
)
def test_a_worker_is_left_for_everything_else(
    settings: Any, workers: int | None, max_waiters: int, max_reads: int
) -> None:
    settings.API_MAX_WAITERS, settings.MAX_EXPENSIVE_READS = 5, 2
    try:
        long_requests.set_workers(workers)
        assert long_requests.get_max_waiters() == max_waiters
        assert long_requests.get_max_reads() == max_reads
    finally:
        long_requests.set_workers(None)

"""The commands that all Python drivers share; benchmarks/peers/node/driver.mjs is the same for Node.

Usage: `python -c "from benchmarks.peers.python import celery_driver; celery_driver.main()" COMMAND [JSON]`. The answer is one
JSON line on stdout. Run as a program, a driver would name its task `__main__.call`, which the workers do not know.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import requests

BODY = "y" * 200

_local = threading.local()


class Job(NamedTuple):
    url: str
    due_ms: int

    @property
    def due(self) -> datetime:
        return datetime.fromtimestamp(self.due_ms / 1000, UTC)


class Submitter(Protocol):
    """How a candidate takes jobs."""

    batch_size: int
    connections: int  # how many batches are submitted at once

    def prepare(self) -> None:
        """Create what the workers need in an empty store."""

    def submit(self, jobs: Sequence[Job]) -> None:
        """Return when the candidate has accepted the jobs."""

    def settle(self) -> None:
        """Return when the workers have put all future jobs where they wait for their time."""


def send_call(url: str) -> dict[str, Any]:
    """Send the request that a job stands for. Return the outcome, which is what the candidate stores."""
    session = getattr(_local, "session", None)
    if session is None:
        session = _local.session = requests.Session()
        session.trust_env = False  # otherwise each request searches the environment for proxies
    response = session.post(url, data=BODY, headers={"Content-Type": "application/json"}, timeout=30)
    response.raise_for_status()
    return {"status": response.status_code, "body": response.text}


def build_job(url: str, number: int, due_ms: int) -> Job:
    return Job(f"{url}?due={due_ms}&job={number}", due_ms)


def submit_batches(submitter: Submitter, url: str, first: int, count: int, due: int) -> dict[str, float]:
    """Submit jobs that are due at one moment, given in milliseconds. Return the seconds that it took."""
    size = submitter.batch_size
    batches = [
        [build_job(url, number, due) for number in range(start, min(first + count, start + size))]
        for start in range(first, first + count, size)
    ]
    started = time.perf_counter()
    if submitter.connections == 1:
        for batch in batches:
            submitter.submit(batch)
    else:
        with ThreadPoolExecutor(submitter.connections) as pool:
            list(pool.map(submitter.submit, batches))
    return {"seconds": time.perf_counter() - started}


def submit_steadily(submitter: Submitter, url: str, count: int, rate: float, ahead: int) -> dict[str, float]:
    """Submit one job after the other on schedule, each due `ahead` ms later. Return by how much submission fell behind."""
    start, behind = time.time() + 0.2, 0.0
    with ThreadPoolExecutor(8) as pool:
        submissions = []
        for number in range(count):
            at = start + number / rate
            time.sleep(max(0.0, at - time.time()))
            behind = max(behind, time.time() - at)
            job = build_job(url, number, round(at * 1000) + ahead)
            submissions.append(pool.submit(submitter.submit, [job]))
        for submission in submissions:
            submission.result()
    return {"behind_ms": behind * 1000}


def run_driver(submitter: Submitter) -> None:
    command, options = sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    commands: dict[str, Callable[[], dict[str, float] | None]] = {
        "prepare": submitter.prepare,
        "submit": lambda: submit_batches(submitter, **options),
        "submit_steadily": lambda: submit_steadily(submitter, **options),
        "settle": submitter.settle,
    }
    print(json.dumps(commands[command]() or {}), flush=True)
    os._exit(0)  # client libraries may have threads that do not end


def wait_until_empty(count_waiting: Callable[[], int]) -> None:
    """Return when the workers have taken every message from the queue."""
    while count_waiting():
        time.sleep(0.05)

"""Event Service over its REST API: 1,000 calls per request, the maximum, or one."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import requests

from benchmarks.peers.python.driver import BODY, Job, run_driver


def format_time(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds")


def build_submission(job: Job) -> dict[str, Any]:
    request = {
        "method": "POST",
        "url": job.url,
        "headers": {"Content-Type": "application/json"},
        "body": BODY,
    }
    return {"name": "call", "dueAt": format_time(job.due), "requestSpec": request}


class RestSubmitter:
    batch_size = 1000
    connections = 2  # as many as there are web workers

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._key = key
        self._local = threading.local()

    def prepare(self) -> None:
        pass

    def submit(self, jobs: Sequence[Job]) -> None:
        items = [build_submission(job) for job in jobs]
        path, document = ("", items[0]) if len(items) == 1 else ("/batch", {"items": items})
        response = self._get_session().post(self._url + path, data=json.dumps(document), timeout=120)
        if response.status_code != 202 or response.text.count('"serviceCallId"') < len(jobs):
            raise RuntimeError(f"refused with {response.status_code}: {response.text[:300]}")

    def _get_session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = requests.Session()
            session.trust_env = False
            session.headers.update(
                {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
            )
        return session

    def settle(self) -> None:
        pass


def main() -> None:
    run_driver(RestSubmitter(os.environ["PEER_STORE"], os.environ["PEER_KEY"]))

"""Celery on Redis.

Its guides advise a large prefetch multiplier for many short tasks, late acknowledgement for tasks that must survive their
worker, and with Redis a visibility timeout above the longest ETA. They advise the gevent pool for work that waits for a network,
but here it took twice as much CPU time per call as the prefork pool, and acknowledgements failed for want of connections.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from celery import Celery  # type: ignore[import-not-found]

from benchmarks.peers.python.driver import Job, run_driver, send_call, wait_until_empty

STORE = os.environ["PEER_STORE"]

app = Celery("peers", broker=STORE, backend=STORE)
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=64,
    broker_transport_options={"visibility_timeout": 400 * 86_400},
    broker_connection_retry_on_startup=True,
    worker_cancel_long_running_tasks_on_connection_loss=True,
)


@app.task(name="call")  # type: ignore[untyped-decorator]
def call(url: str) -> dict[str, Any]:
    return send_call(url)


class CelerySubmitter:
    batch_size = 1  # there is no call for several tasks
    connections = 1

    def prepare(self) -> None:
        pass

    def submit(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            call.apply_async((job.url,), eta=job.due)

    def settle(self) -> None:
        with app.connection_for_read() as connection:
            client = connection.default_channel.client
            wait_until_empty(lambda: int(client.llen("celery")))


def main() -> None:
    run_driver(CelerySubmitter())

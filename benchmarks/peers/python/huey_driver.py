"""huey on Redis, with results.

Its documentation advises greenlets for work that waits for a network; one second is the shortest scheduler interval.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from huey import RedisHuey  # type: ignore[import-not-found]

from benchmarks.peers.python.driver import Job, run_driver, send_call, wait_until_empty

app = RedisHuey("peers", url=os.environ["PEER_STORE"])


@app.task()  # type: ignore[untyped-decorator]
def call(url: str) -> dict[str, Any]:
    return send_call(url)


class HueySubmitter:
    batch_size = 1  # there is no call for several tasks
    connections = 1

    def prepare(self) -> None:
        pass

    def submit(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            call.schedule((job.url,), eta=job.due)

    def settle(self) -> None:
        wait_until_empty(lambda: int(app.storage.queue_size()))


def main() -> None:
    run_driver(HueySubmitter())

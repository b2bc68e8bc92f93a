"""huey's side of a burst: tasks that POST 200 bytes. It is run by the Python of huey's own environment.

Usage: `python -c "import huey_app; huey_app.main()" enqueue COUNT DUE URL` or `… flush`, and `huey_consumer huey_app.app`.
Run as a program, the module would name its task `__main__.send`, which the consumer does not know.
"""

from __future__ import annotations

import os
import sys
import threading
from datetime import UTC, datetime
from typing import Any

import requests
from huey import RedisHuey, SqliteHuey  # type: ignore[import-not-found]

BODY = "y" * 200

app: Any
# Results are not stored, because nobody reads them and writing them takes time.
if os.environ["HUEY_STORE"] == "redis":
    app = RedisHuey("bench", url=os.environ["HUEY_REDIS_URL"], results=False)
else:
    app = SqliteHuey("bench", filename=os.environ["HUEY_FILE"], results=False)

_local = threading.local()


@app.task()  # type: ignore[untyped-decorator]
def send(url: str) -> None:
    session = getattr(_local, "session", None)
    if session is None:
        session = _local.session = requests.Session()
    session.post(url, data=BODY, timeout=30)


def main() -> None:
    command, *arguments = sys.argv[1:]
    if command == "flush":
        app.storage.flush_all() if os.environ["HUEY_STORE"] != "redis" else app.storage.conn.flushdb()
        return
    count, due, url = arguments
    eta = datetime.fromtimestamp(float(due), UTC)
    for _ in range(int(count)):
        send.schedule(args=(url,), eta=eta)

"""The peer's side of a burst, run by the Python of the peer's own environment: tasks that POST 200 bytes.

python -c "import huey_app; huey_app.main()" enqueue COUNT DUE URL | flush, or huey_consumer huey_app.app. (As a
program of its own its tasks would be called `__main__.call`, which the consumer does not know.)
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
# It is asked for no results: it would only write more.
if os.environ["HUEY_STORE"] == "redis":
    app = RedisHuey("bench", url=os.environ["HUEY_REDIS_URL"], results=False)
else:
    app = SqliteHuey("bench", filename=os.environ["HUEY_FILE"], results=False)

_kept = threading.local()


@app.task()  # type: ignore[untyped-decorator]
def call(url: str) -> None:
    session = getattr(_kept, "session", None)
    if session is None:
        session = _kept.session = requests.Session()
    session.post(url, data=BODY, timeout=30)


def main() -> None:
    do, *arguments = sys.argv[1:]
    if do == "flush":
        app.storage.flush_all() if os.environ["HUEY_STORE"] != "redis" else app.storage.conn.flushdb()
        return
    count, due, url = arguments
    eta = datetime.fromtimestamp(float(due), UTC)
    for _ in range(int(count)):
        call.schedule(args=(url,), eta=eta)

"""How gunicorn serves the web tier: `gunicorn -c python:eventservice.runtime.gunicorn_config eventservice.wsgi`.

Sync workers, about one a core: with SQLite they are twice as fast as threads. One of them reads a request until it
has it, so a connection on which nobody says anything (browsers open spare ones) would hold it. The kernel hands us
only those that have something to say.
"""

import os
import socket
from contextlib import suppress
from typing import Any

from gunicorn.util import write_nonblock
from gunicorn.workers.sync import SyncWorker


class Worker(SyncWorker):  # type: ignore[misc]  # gunicorn has no types
    """What gunicorn itself refuses, such as a line that is too long, is a problem as from the API, and no page."""

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        # Which needs Django's settings, and gunicorn reads this file before they are there.
        from eventservice.api.problems import refuse_unreadable

        page = Page()
        super().handle_error(req, page, addr, exc)
        answer = refuse_unreadable(page.status)
        answer["Content-Length"], answer["Connection"] = str(len(answer.content)), "close"
        first = f"HTTP/1.1 {answer.status_code} {answer.reason_phrase}".encode()
        with suppress(OSError):
            write_nonblock(
                client, b"%b\r\n%b\r\n\r\n%b" % (first, answer.serialize_headers(), answer.content)
            )


class Page:
    """Takes gunicorn's own answer in place of the connection: only its status is of use."""

    status = 500

    def gettimeout(self) -> float:
        return 0.0

    def sendall(self, page: bytes) -> None:
        self.status = int(page.split(maxsplit=2)[1])


worker_class = Worker
preload_app = True
# The most that gunicorn can: the query of a list may have many filters, and a cursor.
limit_request_line = 8190
loglevel = "warning"
# A request that waits for a call (?wait=) must not be taken for one that hangs.
timeout = int(os.environ.get("API_MAX_WAIT_SECONDS") or 30) + 30

SILENT_SECONDS = 60


def when_ready(server: Any) -> None:
    for listener in server.LISTENERS:
        if listener.sock.family != socket.AF_UNIX and hasattr(socket, "TCP_DEFER_ACCEPT"):
            listener.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, SILENT_SECONDS)

"""How gunicorn serves the web tier: `gunicorn -c python:eventservice.web eventservice.wsgi`.

Sync workers, about one a core: with SQLite they are twice as fast as threads. One of them reads a request until it
has it, so a connection on which nobody says anything (browsers open spare ones) would hold it. The kernel hands us
only those that have something to say.
"""

import os
import socket
from typing import Any

preload_app = True
loglevel = "warning"
# A request that waits for a call (?wait=) must not be taken for one that hangs.
timeout = int(os.environ.get("API_MAX_WAIT_SECONDS") or 30) + 30

SILENT_SECONDS = 60


def when_ready(server: Any) -> None:
    for listener in server.LISTENERS:
        if listener.sock.family != socket.AF_UNIX and hasattr(socket, "TCP_DEFER_ACCEPT"):
            listener.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, SILENT_SECONDS)

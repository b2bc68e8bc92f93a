"""The configuration of gunicorn: `gunicorn -c python:eventservice.runtime.gunicorn_config eventservice.wsgi`.

Sync workers, about one for each core: with SQLite they are twice as fast as threads. A sync worker reads a request
until it is complete, so a silent connection (browsers open spare ones) would block it. Therefore the kernel passes on
only connections on which data has arrived.
"""

import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gunicorn.glogging import Logger
from gunicorn.util import write_nonblock
from gunicorn.workers.sync import SyncWorker

from eventservice.kernel.env import load_env_file
from eventservice.kernel.logging import build_logging_config, get_logger

log = get_logger(__name__)

# The settings do not exist when gunicorn reads this file, and some of it depends on their variables.
load_env_file(Path(__file__).resolve().parents[2])


class ProblemWorker(SyncWorker):  # type: ignore[misc]  # gunicorn has no types
    """Answers requests that gunicorn refuses, for example because a line is too long, with a problem as the API does."""

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        # Imported here because it needs Django's settings, which do not exist when gunicorn reads this file.
        from eventservice.api.problems import refuse_unreadable

        default = DefaultResponse()
        super().handle_error(req, default, addr, exc)
        response = refuse_unreadable(default.status)
        response["Content-Length"], response["Connection"] = str(len(response.content)), "close"
        head = f"HTTP/1.1 {response.status_code} {response.reason_phrase}".encode()
        with suppress(OSError):
            write_nonblock(
                client, b"%b\r\n%b\r\n\r\n%b" % (head, response.serialize_headers(), response.content)
            )


class DefaultResponse:
    """Stands in for the connection while gunicorn writes its own response, of which only the status is used."""

    status = 500

    def gettimeout(self) -> float:
        return 0.0

    def sendall(self, response: bytes) -> None:
        self.status = int(response.split(maxsplit=2)[1])


class QuietLogger(Logger):  # type: ignore[misc]  # gunicorn has no types
    """Gunicorn's logger, which builds a line of the access log only if it will be written."""

    def access(self, resp: Any, req: Any, environ: Any, request_time: Any) -> None:
        # With logconfig_dict, gunicorn collects the fields of the line before it asks: 165 calls for each request.
        if self.access_log.isEnabledFor(logging.INFO):
            super().access(resp, req, environ, request_time)


worker_class = ProblemWorker
logger_class = QuietLogger
preload_app = True
# The maximum of gunicorn: the query string of a list may have many filters and a cursor.
limit_request_line = 8190
loglevel = "warning"
# By default, clients on this machine may rewrite the path of their requests by the header SCRIPT_NAME.
forwarder_headers = ""
# Gunicorn's own lines have the format of all others.
logconfig_dict = build_logging_config(
    "WARNING",
    os.environ.get("LOG_FORMAT") or ("json" if os.environ.get("ENVIRONMENT") == "production" else "console"),
)
for _name in ("gunicorn.error", "gunicorn.access"):
    logconfig_dict["loggers"][_name] = {"level": "WARNING", "handlers": [], "propagate": True}
# A request that waits for a call (?wait=) must not be killed as one that hangs.
timeout = int(os.environ.get("API_MAX_WAIT_SECONDS") or 30) + 30

MAX_SILENCE_SECONDS = 60
# How soon a worker notices that gunicorn's main process is gone, and how long its request may take then.
PARENT_POLL_SECONDS = 1.0
ORPHAN_GRACE_SECONDS = 5.0


def on_starting(server: Any) -> None:
    """Refuse to start with settings that every command refuses, such as waits that contradict each other, and in a database
    that `manage.py move_database` has not filled completely."""
    from django.core import checks
    from django.core.management.base import CommandError

    from eventservice.runtime.environment import refuse_incomplete_move

    errors = [
        message for message in checks.run_checks() if message.is_serious() and not message.is_silenced()
    ]
    if errors:
        sys.exit("\n\n".join(["The system checks failed:", *map(str, errors)]))
    try:
        refuse_incomplete_move()
    except CommandError as refusal:
        sys.exit(str(refusal))


def when_ready(server: Any) -> None:
    from eventservice.api.long_requests import set_workers
    from eventservice.runtime.environment import warn_of_default_environment

    warn_of_default_environment()
    set_workers(server.cfg.workers)
    _load_views()
    for listener in server.LISTENERS:
        if listener.sock.family != socket.AF_UNIX and hasattr(socket, "TCP_DEFER_ACCEPT"):
            listener.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, MAX_SILENCE_SECONDS)
    # gunicorn says this itself, but among much else.
    log.info("listening", address=", ".join(map(str, server.LISTENERS)))


def on_reload(server: Any) -> None:
    """Log that SIGHUP changes nothing but the workers: settings and code were loaded before they were forked."""
    log.warning(
        "reload_ignored",
        reason="SIGHUP replaces the workers, and reads neither settings nor code",
        remedy="Restart the service, for example with `systemctl restart`.",
    )


def post_fork(server: Any, worker: Any) -> None:
    threading.Thread(target=_exit_with_parent, args=(server.pid,), name="parent", daemon=True).start()


def _exit_with_parent(parent: int) -> None:
    """End this worker when its main process is gone. gunicorn's own worker may notice after half of `timeout`, and keeps
    the port until then."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_GRACE_SECONDS)
    os._exit(1)


def _load_views() -> None:
    """Load before the workers are forked what Django would load in each of them with its first request.

    The garbage collector then leaves it alone: a list takes a seventh less time without traversing it. And it runs
    seldom: by default it would visit the calls of a batch dozens of times, a twentieth of the request's time.
    """
    from django.urls import get_resolver

    from eventservice.kernel.version import get_version

    _ = get_resolver().url_patterns
    get_version()  # before the code on disk may change
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)

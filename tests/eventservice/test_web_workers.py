"""The web tier as it is shipped: a connection on which nobody says anything holds no worker."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest
from django.conf import settings

from tests.witness import until

WORKERS = 2


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    web = subprocess.Popen(
        [
            sys.executable, "-m", "gunicorn", "-c", "python:eventservice.web", "eventservice.wsgi",
            "--bind", f"127.0.0.1:{port}", "--workers", str(WORKERS),
        ],
        cwd=settings.BASE_DIR,
    )  # fmt: skip
    try:
        until(lambda: answers(port, 5), "it serves")
        yield port
    finally:
        web.terminate()
        web.wait(15)


def answers(port: int, seconds: float) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=seconds) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.skipif(
    not hasattr(socket, "TCP_DEFER_ACCEPT"), reason="only Linux tells who has something to say"
)
def test_a_browsers_spare_connections_hold_nobody_up(port: int) -> None:
    spare = [socket.create_connection(("127.0.0.1", port)) for _ in range(2 * WORKERS)]
    try:
        assert answers(port, 10)
    finally:
        for connection in spare:
            connection.close()

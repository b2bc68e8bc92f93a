"""The servers other than databases that tests use: their URLs, or the reason why a test is skipped."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
from typing import NoReturn
from urllib.parse import SplitResult, urlsplit

import pytest

from benchmarks.command_line import SERVICES, find_service_url


def require_service(name: str) -> SplitResult:
    """Return the URL of a server: `TEST_<NAME>_URL`, or the one that `make services` starts. Skip the test without it."""
    url = urlsplit(os.environ.get(f"TEST_{name.upper()}_URL") or find_service_url(name))
    try:
        socket.create_connection((url.hostname, url.port), timeout=3).close()
    except OSError:
        reason = f"no server answers at {url.hostname}:{url.port}; start one: make services NAMES={name}"
        skip(reason)
    return url


def find_tool(service: str, program: str) -> list[str]:
    """Return the command of a client program of a server that `make services` starts. Skip the test without it."""
    found = subprocess.run([SERVICES, "tool", service, program], capture_output=True, text=True)
    if found.returncode != 0:
        skip(f"there is no {program} that suits {service}: {found.stderr.strip()}")
    return found.stdout.splitlines()


def require_library(name: str) -> None:
    """Skip the test if a client library is not installed."""
    if importlib.util.find_spec(name) is None:
        skip(f"the Python package {name!r} is not installed; run `make install-dev`")


def skip(reason: str) -> NoReturn:
    """Skip the test, or fail it if all services are required."""
    if os.environ.get("REQUIRE_SERVICES") == "1":
        pytest.fail(reason)
    pytest.skip(reason)

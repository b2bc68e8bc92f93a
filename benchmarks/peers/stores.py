"""CPU time of the databases, as far as it belongs to a candidate."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

from benchmarks.processes import read_command_line, read_cpu_seconds


class Store(Protocol):
    def read_cpu_seconds(self) -> dict[str, float] | None:
        """Return the CPU seconds so far by process, or None if they cannot be read on this machine."""


class SqliteStore:
    """SQLite works in the processes of the candidate."""

    def read_cpu_seconds(self) -> dict[str, float] | None:
        return {}


class PostgresqlStore:
    """The server processes that serve connections to the candidate's database. Writers in the background are left out."""

    def __init__(self, url: str) -> None:
        self._database = urlsplit(url).path.removeprefix("/")

    def read_cpu_seconds(self) -> dict[str, float] | None:
        backends = {
            path.name: command
            for path in Path("/proc").glob("[0-9]*")
            if (command := read_command_line(int(path.name))).startswith("postgres: ")
        }
        if not backends:
            return None
        return {
            pid: read_cpu_seconds(int(pid))
            for pid, command in backends.items()
            if f" {self._database} " in command
        }


class RedisStore:
    """The Redis server, which nothing else should use during the run."""

    def __init__(self, url: str) -> None:
        self._server = urlsplit(url)

    def read_cpu_seconds(self) -> dict[str, float] | None:
        return {"redis": parse_redis_cpu(_ask_redis_info(self._server))}


def parse_redis_cpu(info: str) -> float:
    """Return the CPU seconds of the server in an answer to `INFO cpu`."""
    fields = dict(re.findall(r"^(\w+):(\S+)", info, re.M))
    return float(fields["used_cpu_user"]) + float(fields["used_cpu_sys"])


def _ask_redis_info(server: SplitResult) -> str:
    with (
        socket.create_connection((server.hostname, server.port or 6379), timeout=5) as connection,
        connection.makefile("rb") as answers,
    ):
        connection.sendall(b"INFO cpu\r\n")
        length = int(answers.readline()[1:])
        return answers.read(length).decode()


def subtract_cpu_seconds(after: dict[str, float] | None, before: dict[str, float] | None) -> float | None:
    """Return the CPU seconds in between. A process that was started in between counts in full."""
    if after is None or before is None:
        return None
    return sum(seconds - before.get(process, 0.0) for process, seconds in after.items())

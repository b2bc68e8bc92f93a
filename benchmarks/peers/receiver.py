"""The HTTP server that all candidates call, and its record of arrivals.

It shares the machine with the candidates, so it does as little as possible: it finds the end of each request, notes the time
and the path, and sends a constant response. Run as a program (`python receiver.py FILE`), it prints its port.
"""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

RESPONSE = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"ok":true}'
FLUSH_SECONDS = 0.05
RECEIVE_BYTES = 65_536
STALL_SECONDS = 90.0
POLL_SECONDS = 0.05


# --- the server -----------------------------------------------------------------------------------------------


def split_requests(buffer: bytes) -> tuple[list[bytes], bytes]:
    """Return the heads of the complete requests in the buffer, and the rest. A body has a Content-Length."""
    heads = []
    while (end := buffer.find(b"\r\n\r\n")) >= 0:
        head = buffer[:end]
        _, found, value = head.lower().partition(b"\r\ncontent-length:")
        total = end + 4 + (int(value.partition(b"\r\n")[0]) if found else 0)
        if len(buffer) < total:
            break
        heads.append(head)
        buffer = buffer[total:]
    return heads, buffer


def serve(record: Path) -> None:
    """Answer requests until the process is stopped, and append one line `time path` for each to the record."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    listener.setblocking(False)
    print(listener.getsockname()[1], flush=True)
    epoll = select.epoll()
    epoll.register(listener, select.EPOLLIN)
    connections: dict[int, socket.socket] = {}
    buffers: dict[int, bytes] = {}
    lines: list[str] = []
    flush_at = 0.0
    with record.open("a") as file:
        while True:
            events = epoll.poll(FLUSH_SECONDS)
            now = time.time()
            for number, _ in events:
                if number == listener.fileno():
                    accept_all(listener, epoll, connections, buffers)
                    continue
                heads = answer(connections[number], number, buffers)
                if heads is None:
                    epoll.unregister(number)
                    connections.pop(number).close()
                    del buffers[number]
                else:
                    lines += [f"{now:.6f} {head.split(b' ', 2)[1].decode()}\n" for head in heads]
            if lines and now >= flush_at:
                file.writelines(lines)
                file.flush()
                lines.clear()
                flush_at = now + FLUSH_SECONDS


def accept_all(
    listener: socket.socket,
    epoll: select.epoll,
    connections: dict[int, socket.socket],
    buffers: dict[int, bytes],
) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            connection, _ = listener.accept()
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number = connection.fileno()
            connections[number], buffers[number] = connection, b""
            epoll.register(connection, select.EPOLLIN)


def answer(connection: socket.socket, number: int, buffers: dict[int, bytes]) -> list[bytes] | None:
    """Answer what has arrived on a connection. Return the heads of the requests, or None if it is closed."""
    try:
        data = connection.recv(RECEIVE_BYTES)
        if not data:
            return None
        heads, buffers[number] = split_requests(buffers[number] + data)
        if heads:
            connection.sendall(RESPONSE * len(heads))
    except BlockingIOError:
        return []
    except OSError:
        return None
    return heads


# --- the record -----------------------------------------------------------------------------------------------


class Arrival(NamedTuple):
    """A request as it reached the receiver. Times are in seconds since 1970."""

    time: float
    label: str
    job: int
    due: float

    @property
    def lateness_ms(self) -> float:
        return (self.time - self.due) * 1000


def parse_arrival(line: str) -> Arrival:
    arrived, path = line.split()
    parts = urlsplit(path)
    query = parse_qs(parts.query)
    return Arrival(
        float(arrived), parts.path.removeprefix("/"), int(query["job"][0]), int(query["due"][0]) / 1000
    )


class StalledError(Exception):
    """No request arrived for a long time; the message says how many were missing."""


class Receiver:
    """A running receiver, and a reader of its record."""

    def __init__(self, port: int, record: Path) -> None:
        self.port = port
        self._file = record.open()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def build_url(self, label: str) -> str:
        return f"http://{self.address}/{label}"

    def collect(self, label: str, count: int, stall_seconds: float = STALL_SECONDS) -> list[Arrival]:
        """Return the arrivals under a label once all have arrived, each job counted at its first arrival.

        Raise StalledError when nothing has arrived for so many seconds.
        """
        first: dict[str, str] = {}
        mark = f"/{label}?"
        last_progress = time.monotonic()
        while len(first) < count:
            lines = self._read_lines()
            for line in lines:
                arrived, _, path = line.partition(" ")
                if path.startswith(mark):
                    first.setdefault(path, arrived)
                    last_progress = time.monotonic()
            if not lines:
                if time.monotonic() - last_progress > stall_seconds:
                    raise StalledError(f"{count - len(first)} of {count} requests of {label} did not arrive")
                time.sleep(POLL_SECONDS)
        return [parse_arrival(f"{arrived} {path}") for path, arrived in first.items()]

    def _read_lines(self) -> Sequence[str]:
        position, text = self._file.tell(), self._file.read()
        complete, newline, rest = text.rpartition("\n")
        if rest:
            self._file.seek(position + len(complete) + len(newline))
        return complete.splitlines()

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def start_receiver(folder: Path) -> Iterator[Receiver]:
    """Start a receiver that records into this folder."""
    # Not imported above: run as a program, this file must not load anything.
    from benchmarks.processes import start_process

    record = folder / "arrivals.txt"
    record.touch()
    argv = [sys.executable, "-S", __file__, str(record)]
    with start_process(argv, {}, stdout=subprocess.PIPE) as popen:
        assert popen.stdout
        with popen.stdout:
            receiver = Receiver(int(popen.stdout.readline()), record)
        try:
            yield receiver
        finally:
            receiver.close()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))

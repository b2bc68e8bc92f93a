"""A light HTTP client in a process of its own: threads that each keep one connection and POST the same body.

Job as one JSON line on stdin, result as one on stdout. With a rate the requests go out on time whatever the
answers do (an open loop: a slow answer does not hide itself by slowing the next request down); without one as fast
as the connections allow.
"""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

START_IN = 0.3  # once all threads stand ready


@dataclass(frozen=True)
class Job:
    port: int
    path: str
    body: str = ""
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    count: int = 1
    connections: int = 16
    rate: float | None = None
    keep: bool = True  # the bodies of the answers


class Answered(NamedTuple):
    sent: float
    answered: float
    status: int
    body: str


class Connection:
    """Kept for as long as the server keeps it (gunicorn's sync workers close it after each answer)."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None

    def exchange(self, request: bytes) -> tuple[int, bytes]:
        kept = self._socket is not None
        try:
            return self._exchange(request)
        except ConnectionError:
            self._close()
            if not kept:
                raise
            return self._exchange(request)  # the server had closed it in between

    def _exchange(self, request: bytes) -> tuple[int, bytes]:
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=60)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(request)
        data = bytearray()
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._more()
        head = bytes(data[:end]).lower()
        body = data[end + 4 :]
        length = head.partition(b"content-length:")[2].split(b"\r\n", 1)[0]
        if not length.strip():
            raise ValueError(f"an answer without a Content-Length: {head[:200]!r}")
        while len(body) < int(length):
            body += self._more()
        if b"connection: close" in head:
            self._close()
        return int(head.split(b" ", 2)[1]), bytes(body)

    def _more(self) -> bytes:
        assert self._socket
        data = self._socket.recv(262_144)
        if not data:
            raise ConnectionResetError("closed before the answer was complete")
        return data

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def request_bytes(job: Job) -> bytes:
    body = job.body.encode()
    headers = {"Host": f"127.0.0.1:{job.port}", "Content-Length": str(len(body)), **job.headers}
    if body:
        headers["Content-Type"] = "application/json"
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{job.method} {job.path} HTTP/1.1\r\n{head}\r\n".encode() + body


def work(job: Job, numbers: Iterator[int], start: float, results: list[Answered]) -> None:
    connection, request = Connection(job.port), request_bytes(job)
    for number in numbers:
        if number >= job.count:
            return
        wait = (start if job.rate is None else start + number / job.rate) - time.time()
        if wait > 0:
            time.sleep(wait)
        sent = time.time()
        try:
            status, body = connection.exchange(request)
        except (OSError, ValueError) as error:
            status, body = 0, str(error).encode()
        keep = job.keep or status >= 400 or not status
        results.append(Answered(sent, time.time(), status, body.decode(errors="replace") if keep else ""))


def perform(job: Job) -> list[Answered]:
    results: list[Answered] = []
    numbers, start = itertools.count(), time.time() + START_IN
    threads = [
        threading.Thread(target=work, args=(job, numbers, start, results), daemon=True)
        for _ in range(min(job.connections, job.count))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(results)


class Load:
    """A job under way."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._popen = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._popen.stdin
        self._popen.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
        self._popen.stdin.flush()

    def results(self, seconds: float) -> list[Answered]:
        try:
            out, _ = self._popen.communicate(timeout=seconds)
        finally:
            self.close()
        return [Answered(*one) for one in json.loads(out)]

    def close(self) -> None:
        self._popen.kill()
        self._popen.wait()

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load(job: Job, seconds: float = 600.0) -> list[Answered]:
    """In a process of its own."""
    with Load(job) as under_way:
        return under_way.results(seconds)


def rate(answered: list[Answered]) -> float:
    """Requests a second, from the first sent to the last answered."""
    return len(answered) / (max(one.answered for one in answered) - answered[0].sent)


def statuses(answered: list[Answered]) -> dict[int, int]:
    found: dict[int, int] = {}
    for one in answered:
        found[one.status] = found.get(one.status, 0) + 1
    return found


def main() -> None:
    job: dict[str, Any] = json.loads(sys.stdin.readline())
    print(json.dumps(perform(Job(**job))))


if __name__ == "__main__":
    main()

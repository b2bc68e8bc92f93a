"""A light HTTP client in a separate process: each of its threads keeps one connection and sends requests.

It reads a job as one JSON line from stdin and prints the responses as one JSON line. With a rate, requests are sent on
schedule however slow the responses are (an open loop, in which a slow response does not hide itself by delaying the
next request). Without a rate, requests are sent as fast as the connections allow.
"""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

START_DELAY_SECONDS = 0.3  # enough for all threads to be ready


@dataclass(frozen=True)
class LoadJob:
    port: int
    path: str
    body: str = ""
    # If given, request number n has the n-th of them, instead of `body`.
    bodies: Sequence[str] = ()
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    count: int = 1
    connections: int = 16
    rate: float | None = None
    keep: bool = True  # whether the bodies of successful responses are returned


class LoadResponse(NamedTuple):
    sent: float
    answered: float
    status: int  # 0 if there was no valid response
    body: str


class LoadConnection:
    """A connection that is reused until the server closes it (gunicorn's sync workers do so after each response)."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None

    def send(self, request: bytes) -> tuple[int, bytes]:
        """Return the status and the body. A request that fails on a reused connection is repeated on a new one."""
        reused = self._socket is not None
        try:
            return self._send(request)
        except ConnectionError:
            self._close()
            if not reused:
                raise
            return self._send(request)

    def _send(self, request: bytes) -> tuple[int, bytes]:
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=60)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(request)
        data = bytearray()
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._receive()
        head = bytes(data[:end]).lower()
        body = data[end + 4 :]
        length = head.partition(b"content-length:")[2].split(b"\r\n", 1)[0]
        if not length.strip():
            raise ValueError(f"a response without a Content-Length: {head[:200]!r}")
        while len(body) < int(length):
            body += self._receive()
        if b"connection: close" in head:
            self._close()
        return int(head.split(b" ", 2)[1]), bytes(body)

    def _receive(self) -> bytes:
        assert self._socket
        data = self._socket.recv(262_144)
        if not data:
            raise ConnectionResetError("closed before the response was complete")
        return data

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def build_request(job: LoadJob, text: str) -> bytes:
    body = text.encode()
    headers = {"Host": f"127.0.0.1:{job.port}", "Content-Length": str(len(body)), **job.headers}
    if body:
        headers["Content-Type"] = "application/json"
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{job.method} {job.path} HTTP/1.1\r\n{head}\r\n".encode() + body


def send_requests(job: LoadJob, numbers: Iterator[int], start: float, responses: list[LoadResponse]) -> None:
    """Send requests over one connection until all threads together have sent as many as the job asks for."""
    connection, same_request = LoadConnection(job.port), build_request(job, job.body)
    for number in numbers:
        if number >= job.count:
            return
        request = build_request(job, job.bodies[number]) if job.bodies else same_request
        delay = (start if job.rate is None else start + number / job.rate) - time.time()
        if delay > 0:
            time.sleep(delay)
        sent = time.time()
        try:
            status, body = connection.send(request)
        except (OSError, ValueError) as error:
            status, body = 0, str(error).encode()
        keep = job.keep or status >= 400 or not status
        responses.append(
            LoadResponse(sent, time.time(), status, body.decode(errors="replace") if keep else "")
        )


def run_threads(job: LoadJob) -> list[LoadResponse]:
    """Run the job in this process and return the responses in the order of sending."""
    responses: list[LoadResponse] = []
    numbers, start = itertools.count(), time.time() + START_DELAY_SECONDS
    threads = [
        threading.Thread(target=send_requests, args=(job, numbers, start, responses), daemon=True)
        for _ in range(min(job.connections, job.count))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(responses)


class LoadProcess:
    """A job that runs in a separate process."""

    def __init__(self, job: LoadJob) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._popen.stdin
        self._popen.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
        self._popen.stdin.flush()

    def wait(self, seconds: float) -> list[LoadResponse]:
        """Wait for the job to end and return its responses."""
        try:
            output, _ = self._popen.communicate(timeout=seconds)
        finally:
            self.close()
        return [LoadResponse(*fields) for fields in json.loads(output)]

    def close(self) -> None:
        self._popen.kill()
        self._popen.wait()

    def __enter__(self) -> LoadProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run_load(job: LoadJob, seconds: float = 600.0) -> list[LoadResponse]:
    """Run the job in a separate process and return its responses."""
    with LoadProcess(job) as process:
        return process.wait(seconds)


def compute_rate(responses: list[LoadResponse]) -> float:
    """Return the requests per second, from the first request to the last response."""
    return len(responses) / (max(response.answered for response in responses) - responses[0].sent)


def count_statuses(responses: list[LoadResponse]) -> dict[int, int]:
    return dict(Counter(response.status for response in responses))


def main() -> None:
    job: dict[str, Any] = json.loads(sys.stdin.readline())
    print(json.dumps(run_threads(LoadJob(**job))))


if __name__ == "__main__":
    main()

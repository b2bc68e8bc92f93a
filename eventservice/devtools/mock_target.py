"""A small, fast HTTP target to call: for the demo, the benchmarks and the chaos tests.

    python -m eventservice.devtools.mock_target --port 8088 [--record FILE] [--host 127.0.0.1]

    /  /ok              200 {"ok": true}
    /echo               200, the request as JSON
    /status/<code>      that status
    /delay/<seconds>    200 after that time
    /flaky/<n>          503 the first n times for each idempotency key, then 200
    /callback-retry     200 {"ok": false} once for each idempotency key, then {"ok": true}
    /close              closes the connection without an answer
    /stats              counters; itself neither counted nor recorded

With --record it is the outside witness of what was really sent: one JSON line per request, written before
the request is answered and on disk within 50 ms. It knows nothing of Django, so that it cannot share a bug.
"""

import argparse
import asyncio
import json
import math
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO

from eventservice.runtime.open_files import raise_open_files_limit

BACKLOG = 4096
FLUSH_SECONDS = 0.05
MAX_HEAD = 64 * 1024
MAX_BODY = 64 * 1024 * 1024
MAX_DELAY = 86_400.0
BODYLESS = {204, 304}
PHRASES = {status.value: status.phrase for status in HTTPStatus}


class BadRequestError(Exception):
    """The bytes received are not a request that this target answers; the connection ends with `status`."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(slots=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body_length: int
    keep_alive: bool
    body: bytes = b""

    @property
    def idempotency_key(self) -> str | None:
        return self.headers.get("idempotency-key") or self.headers.get("webhook-id")


@dataclass(slots=True, frozen=True)
class Answer:
    """`wire` is the whole response; empty means that the connection is closed without one."""

    status: int
    wire: bytes
    delay: float = 0.0


def answer(status: int, body: Any, delay: float = 0.0) -> Answer:
    head = f"HTTP/1.1 {status} {PHRASES.get(status, 'Unknown')}\r\nContent-Type: application/json\r\n"
    if status in BODYLESS:
        return Answer(status, f"{head}\r\n".encode(), delay)
    content = json.dumps(body).encode()
    return Answer(status, f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content, delay)


OK = answer(200, {"ok": True})
NOT_OK = answer(200, {"ok": False})
UNAVAILABLE = answer(503, {"ok": False, "error": "flaky"})
NOT_FOUND = answer(404, {"error": "no such path"})
HANG_UP = Answer(0, b"")


def parse_head(head: bytes) -> Request:
    lines = head.decode("latin-1").split("\r\n")
    try:
        method, path, version = lines[0].split(" ")
    except ValueError:
        raise BadRequestError(400, "bad request line") from None
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    if "transfer-encoding" in headers:
        raise BadRequestError(411, "send a Content-Length: chunked bodies are not understood")
    keep_alive = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    return Request(method, path, headers, body_length(headers.get("content-length", "0")), keep_alive)


def body_length(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise BadRequestError(400, "bad Content-Length")
    length = int(text)
    if length > MAX_BODY:
        raise BadRequestError(413, "the body is too large")
    return length


class Record:
    """Appends what was received to a file, whole lines at a time, at most FLUSH_SECONDS late."""

    def __init__(self, file: BinaryIO, loop: asyncio.AbstractEventLoop) -> None:
        self._file = file
        self._loop = loop
        self._lines: list[str] = []

    def add(self, request: Request) -> None:
        if not self._lines:
            self._loop.call_later(FLUSH_SECONDS, self.flush)
        headers = request.headers
        entry = {
            "time": round(time.time(), 6),
            "method": request.method,
            "path": request.path,
            "service_call_id": headers.get("x-service-call-id"),
            "attempt": headers.get("x-attempt"),
            "idempotency_key": request.idempotency_key,
            "body_length": request.body_length,
        }
        self._lines.append(json.dumps(entry))

    def flush(self) -> None:
        if self._lines:
            self._file.write(("\n".join(self._lines) + "\n").encode())
            self._file.flush()
            self._lines.clear()


@dataclass
class Target:
    """What the paths do, and what the connections share."""

    record: Record | None = None
    received: int = 0
    connections: int = 0
    most_connections: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    seen: Counter[tuple[str, str | None]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._routes: dict[str, Callable[[Request, str], Answer]] = {
            "": lambda request, argument: OK,
            "ok": lambda request, argument: OK,
            "echo": self._echo,
            "status": self._status,
            "delay": self._delay,
            "flaky": self._flaky,
            "callback-retry": self._callback_retry,
            "close": lambda request, argument: HANG_UP,
        }

    def handle(self, request: Request) -> Answer:
        name, _, argument = request.path.partition("?")[0].removeprefix("/").partition("/")
        if name == "stats":
            return answer(200, self.stats())
        self.received += 1
        if self.record:
            self.record.add(request)
        route = self._routes.get(name)
        result = route(request, argument) if route else NOT_FOUND
        self.statuses[result.status] += 1
        return result

    def stats(self) -> dict[str, Any]:
        return {
            "received": self.received,
            "by_status": {str(status): count for status, count in sorted(self.statuses.items())},
            "connections": self.connections,
            "most_connections": self.most_connections,
            "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        }

    def _echo(self, request: Request, argument: str) -> Answer:
        return answer(
            200,
            {
                "method": request.method,
                "path": request.path,
                "headers": request.headers,
                "body": request.body.decode(errors="replace"),
            },
        )

    def _status(self, request: Request, argument: str) -> Answer:
        if not (argument.isascii() and argument.isdigit() and 200 <= int(argument) <= 599):
            return answer(400, {"error": "the status must be 200 to 599"})
        return answer(int(argument), {"status": int(argument)})

    def _delay(self, request: Request, argument: str) -> Answer:
        try:
            seconds = float(argument)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds <= MAX_DELAY:  # false for nan as well
            return answer(400, {"error": f"the delay must be 0 to {MAX_DELAY:.0f} seconds"})
        return Answer(200, OK.wire, seconds)

    def _flaky(self, request: Request, argument: str) -> Answer:
        if not (argument.isascii() and argument.isdigit()):
            return answer(400, {"error": "say how often it fails: /flaky/2"})
        return OK if self._times_seen(f"flaky/{argument}", request) > int(argument) else UNAVAILABLE

    def _callback_retry(self, request: Request, argument: str) -> Answer:
        return OK if self._times_seen("callback-retry", request) > 1 else NOT_OK

    def _times_seen(self, path: str, request: Request) -> int:
        key = (path, request.idempotency_key)
        self.seen[key] += 1
        return self.seen[key]


class Connection(asyncio.Protocol):
    """One client. Requests are answered in order, so a delayed answer holds back those behind it."""

    __slots__ = ("_buffer", "_pending", "_request", "_target", "_transport")
    _transport: asyncio.Transport

    def __init__(self, target: Target) -> None:
        self._target = target
        self._buffer = bytearray()
        self._request: Request | None = None  # its head has arrived, its body not yet
        self._pending: asyncio.TimerHandle | None = None  # a delayed answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what create_server promises
        self._transport = transport
        target = self._target
        target.connections += 1
        target.most_connections = max(target.most_connections, target.connections)

    def connection_lost(self, exc: Exception | None) -> None:
        self._target.connections -= 1
        if self._pending:
            self._pending.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._answer_what_has_arrived()

    def _answer_what_has_arrived(self) -> None:
        try:
            while self._pending is None and (request := self._next_request()):
                self._send(self._target.handle(request), request)
        except BadRequestError as error:
            self._transport.write(answer(error.status, {"error": str(error)}).wire)
            self._transport.close()
            self._buffer.clear()

    def _next_request(self) -> Request | None:
        """The next request that has arrived in full."""
        if self._transport.is_closing():
            return None
        request = self._request or self._next_head()
        if request is None:
            return None
        if len(self._buffer) < request.body_length:
            self._request = request
            return None
        self._request = None
        if request.body_length:
            request.body = bytes(self._buffer[: request.body_length])
            del self._buffer[: request.body_length]
        return request

    def _next_head(self) -> Request | None:
        end = self._buffer.find(b"\r\n\r\n", 0, MAX_HEAD)
        if end < 0:
            if len(self._buffer) >= MAX_HEAD:
                raise BadRequestError(431, "the headers are too large")
            return None
        request = parse_head(bytes(self._buffer[:end]))
        del self._buffer[: end + 4]
        if len(self._buffer) < request.body_length and request.headers.get("expect") == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return request

    def _send(self, result: Answer, request: Request) -> None:
        if result.delay:
            loop = asyncio.get_running_loop()
            self._pending = loop.call_later(result.delay, self._send_delayed, result, request)
            return
        if result.wire:
            body_is_unwanted = request.method == "HEAD"
            self._transport.write(
                result.wire.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if body_is_unwanted else result.wire
            )
        if not (result.wire and request.keep_alive):
            self._transport.close()

    def _send_delayed(self, result: Answer, request: Request) -> None:
        self._pending = None
        self._send(Answer(result.status, result.wire), request)
        self._answer_what_has_arrived()


async def serve(host: str, port: int, record_file: BinaryIO | None) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    record = Record(record_file, loop) if record_file else None
    target = Target(record)
    server = await loop.create_server(lambda: Connection(target), host, port, backlog=BACKLOG)
    shown = f"[{host}]" if ":" in host else host
    print(f"listening on http://{shown}:{server.sockets[0].getsockname()[1]}", flush=True)
    try:
        await stopped.wait()
    finally:
        server.close()  # without wait_closed, which waits for clients from Python 3.12 on
        if record:
            record.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="A small, fast HTTP target to call.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free port")
    parser.add_argument("--record", type=Path, metavar="FILE", help="append a JSON line per request to FILE")
    options = parser.parse_args()
    raise_open_files_limit()
    if options.record is None:
        asyncio.run(serve(options.host, options.port, None))
        return
    with options.record.open("ab") as record_file:
        asyncio.run(serve(options.host, options.port, record_file))


if __name__ == "__main__":
    main()

"""A small, fast HTTP server to call, for the demo, the benchmarks and the chaos tests.

    python -m eventservice.devtools.mock_target --port 8088 [--record FILE] [--host 127.0.0.1]

    /  /ok              200 {"ok": true}
    /echo               200, the request as JSON
    /status/<code>      that status
    /delay/<seconds>    200 after that time
    /flaky/<n>          503 the first n times for each idempotency key, which is each call, then 200
    /callback-retry     200 {"ok": false} once for each idempotency key, then {"ok": true}
    /close              closes the connection without a response
    /stats              counters; not counted or recorded itself

With --record, it is an independent witness of what was sent: one JSON line per request, written to disk within 50 ms. It does
not use Django, so that it cannot share a bug with the service.
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
MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_DELAY_SECONDS = 86_400.0
STATUSES_WITHOUT_BODY = {204, 304}
PHRASES = {status.value: status.phrase for status in HTTPStatus}


class BadRequestError(Exception):
    """The received bytes are not a valid request. The connection is closed after a response with `status`."""

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
class Response:
    """A response as sent in `wire`. If it is empty, the connection is closed without a response."""

    status: int
    wire: bytes
    delay: float = 0.0


def build_response(status: int, body: Any, delay: float = 0.0) -> Response:
    head = f"HTTP/1.1 {status} {PHRASES.get(status, 'Unknown')}\r\nContent-Type: application/json\r\n"
    if status in STATUSES_WITHOUT_BODY:
        return Response(status, f"{head}\r\n".encode(), delay)
    content = json.dumps(body).encode()
    return Response(status, f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content, delay)


OK = build_response(200, {"ok": True})
NOT_OK = build_response(200, {"ok": False})
UNAVAILABLE = build_response(503, {"ok": False, "error": "flaky"})
PATHS = (
    "/ok", "/echo", "/status/<code>", "/delay/<seconds>", "/flaky/<n>", "/callback-retry", "/close", "/stats"
)  # fmt: skip
NOT_FOUND = build_response(404, {"error": "no such path", "paths": PATHS})
CLOSE_CONNECTION = Response(0, b"")


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
        raise BadRequestError(411, "chunked bodies are not supported; send a Content-Length")
    keep_alive = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    return Request(
        method, path, headers, parse_content_length(headers.get("content-length", "0")), keep_alive
    )


def parse_content_length(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise BadRequestError(400, "bad Content-Length")
    length = int(text)
    if length > MAX_BODY_BYTES:
        raise BadRequestError(413, "the body is too large")
    return length


class Record:
    """Appends each request to a file, in complete lines, within FLUSH_SECONDS."""

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
    """The behavior of the paths, and the state shared by all connections."""

    record: Record | None = None
    received: int = 0
    connections: int = 0
    most_connections: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    seen: Counter[tuple[str, str | None]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._routes: dict[str, Callable[[Request, str], Response]] = {
            "": lambda request, argument: OK,
            "ok": lambda request, argument: OK,
            "echo": self._echo,
            "status": self._status,
            "delay": self._delay,
            "flaky": self._flaky,
            "callback-retry": self._callback_retry,
            "close": lambda request, argument: CLOSE_CONNECTION,
        }

    def handle(self, request: Request) -> Response:
        name, _, argument = request.path.partition("?")[0].removeprefix("/").partition("/")
        if name == "stats":
            return build_response(200, self.stats())
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

    def _echo(self, request: Request, argument: str) -> Response:
        return build_response(
            200,
            {
                "method": request.method,
                "path": request.path,
                "headers": request.headers,
                "body": request.body.decode(errors="replace"),
            },
        )

    def _status(self, request: Request, argument: str) -> Response:
        if not (argument.isascii() and argument.isdigit() and 200 <= int(argument) <= 599):
            return build_response(400, {"error": "the status must be between 200 and 599"})
        return build_response(int(argument), {"status": int(argument)})

    def _delay(self, request: Request, argument: str) -> Response:
        try:
            seconds = float(argument)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds <= MAX_DELAY_SECONDS:  # false for nan as well
            return build_response(
                400, {"error": f"the delay must be between 0 and {MAX_DELAY_SECONDS:.0f} seconds"}
            )
        return Response(200, OK.wire, seconds)

    def _flaky(self, request: Request, argument: str) -> Response:
        if not (argument.isascii() and argument.isdigit()):
            return build_response(400, {"error": "the path needs a number of failures: /flaky/2"})
        return OK if self._count_requests(f"flaky/{argument}", request) > int(argument) else UNAVAILABLE

    def _callback_retry(self, request: Request, argument: str) -> Response:
        return OK if self._count_requests("callback-retry", request) > 1 else NOT_OK

    def _count_requests(self, path: str, request: Request) -> int:
        key = (path, request.idempotency_key)
        self.seen[key] += 1
        return self.seen[key]


class Connection(asyncio.Protocol):
    """The connection of a client. Requests are answered in order, so a delayed response delays those behind it."""

    __slots__ = ("_buffer", "_pending", "_request", "_target", "_transport")
    _transport: asyncio.Transport

    def __init__(self, target: Target) -> None:
        self._target = target
        self._buffer = bytearray()
        self._request: Request | None = None  # its head was received, its body was not
        self._pending: asyncio.TimerHandle | None = None  # a delayed response

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
        self._answer_received_requests()

    def _answer_received_requests(self) -> None:
        try:
            while self._pending is None and (request := self._next_request()):
                self._send(self._target.handle(request), request)
        except BadRequestError as error:
            self._transport.write(build_response(error.status, {"error": str(error)}).wire)
            self._transport.close()
            self._buffer.clear()

    def _next_request(self) -> Request | None:
        """Return the next request that was received completely."""
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
        end = self._buffer.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
        if end < 0:
            if len(self._buffer) >= MAX_HEAD_BYTES:
                raise BadRequestError(431, "the headers are too large")
            return None
        request = parse_head(bytes(self._buffer[:end]))
        del self._buffer[: end + 4]
        if len(self._buffer) < request.body_length and request.headers.get("expect") == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return request

    def _send(self, result: Response, request: Request) -> None:
        if result.delay:
            loop = asyncio.get_running_loop()
            self._pending = loop.call_later(result.delay, self._send_delayed, result, request)
            return
        if result.wire:
            strip_body = request.method == "HEAD"
            self._transport.write(
                result.wire.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if strip_body else result.wire
            )
        if not (result.wire and request.keep_alive):
            self._transport.close()

    def _send_delayed(self, result: Response, request: Request) -> None:
        self._pending = None
        self._send(Response(result.status, result.wire), request)
        self._answer_received_requests()


async def serve(host: str, port: int, record_file: BinaryIO | None) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    record = Record(record_file, loop) if record_file else None
    target = Target(record)
    server = await loop.create_server(lambda: Connection(target), host, port, backlog=BACKLOG)
    url_host = f"[{host}]" if ":" in host else host
    print(f"listening on http://{url_host}:{server.sockets[0].getsockname()[1]}", flush=True)
    try:
        await stopped.wait()
    finally:
        server.close()  # without wait_closed, which waits for clients from Python 3.12 on
        if record:
            record.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="A small, fast HTTP server to call.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free port)")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="append one JSON line per request to FILE"
    )
    options = parser.parse_args()
    raise_open_files_limit()
    if options.record is None:
        asyncio.run(serve(options.host, options.port, None))
        return
    with options.record.open("ab") as record_file:
        asyncio.run(serve(options.host, options.port, record_file))


if __name__ == "__main__":
    main()

"""An HTTP server in front of DynamoDB Local. It passes requests on, and gives the answers that DynamoDB Local never gives."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import requests

Document = dict[str, Any]


class Answer(NamedTuple):
    status: int
    document: Document
    headers: Mapping[str, str] = {}


# Gets the function that passes the request on, and what was requested.
Fault = Callable[[Callable[[], Answer], Document], Answer]


def refuse(code: str, status: int = 400, message: str = "refused by the test") -> Fault:
    """Return a fault that answers with an error and passes nothing on."""
    return lambda forward, request: _build_error(code, status, message)


def fail_after_execution(code: str, status: int) -> Fault:
    """Return a fault that passes the request on and answers with an error nevertheless."""

    def answer(forward: Callable[[], Answer], request: Document) -> Answer:
        assert forward().status == 200
        return _build_error(code, status, "failed by the test")

    return answer


def change(function: Callable[[Document], Document]) -> Fault:
    """Return a fault that changes the document of the answer."""

    def answer(forward: Callable[[], Answer], request: Document) -> Answer:
        answer = forward()
        return answer._replace(document=function(answer.document))

    return answer


def _build_error(code: str, status: int, message: str) -> Answer:
    return Answer(status, {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message})


class FaultyDynamoDb(ThreadingHTTPServer):
    """The faults of an operation are used up by its next requests, one by each."""

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server_endpoint = endpoint
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.faults: dict[str, list[Fault]] = {}
        self.count: Counter[str] = Counter()
        self.lock = threading.Lock()

    def forget_requests(self) -> None:
        self.count.clear()

    def add(self, operation: str, *faults: Fault) -> None:
        self.faults.setdefault(operation, []).extend(faults)

    def pop_fault(self, operation: str) -> Fault | None:
        with self.lock:
            self.count[operation] += 1
            waiting = self.faults.get(operation)
            return waiting.pop(0) if waiting else None


@contextmanager
def run_faulty_dynamodb(endpoint: str) -> Iterator[FaultyDynamoDb]:
    server = FaultyDynamoDb(endpoint)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyDynamoDb

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))

        def forward() -> Answer:
            headers = {name: value for name, value in self.headers.items() if name != "Host"}
            response = requests.post(self.server.server_endpoint, data=body, headers=headers, timeout=30)
            return Answer(response.status_code, response.json())

        fault = self.server.pop_fault(self.headers["X-Amz-Target"].rpartition(".")[2])
        self._send(fault(forward, json.loads(body)) if fault else forward())

    def _send(self, answer: Answer) -> None:
        body = json.dumps(answer.document).encode()
        # Which has sent the time of this machine in Date, unless the answer has another.
        self.send_response_only(answer.status)
        for name, value in {"Date": self.date_time_string(), **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing to the terminal."""

"""The receiver of webhooks: an HTTP server that verifies signatures by itself and remembers what it accepted."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    def __init__(self) -> None:
        self.accepted: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.secrets: dict[str, str] = {}
        # Returns the status of the response, given the path and the event.
        self.respond: Callable[[str, dict[str, Any]], int] = lambda path, event: 204
        self.response_body = b""
        self.url = ""
        self._lock = threading.Lock()

    def build_url(self, path: str) -> str:
        return self.url + path

    def sequences(self, path: str) -> list[int]:
        """Return the numbers of the events that were accepted at the path, in order."""
        return [int(event["sequence"]) for event in self.accepted if event["path"] == path]

    def receive(self, path: str, headers: dict[str, str], body: bytes) -> int:
        if path in self.secrets and not is_signed(self.secrets[path], headers, body):
            return 401
        event = {**json.loads(body), "path": path}
        status = self.respond(path, event)
        with self._lock:
            self.headers.append(headers)
            if status < 300:
                self.accepted.append(event)
        return status


def is_signed(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """Verify the signature as a receiver's library would, independently of the code under test."""
    key = base64.b64decode(secret[len("whsec_") :])
    message = headers["webhook-id"].encode() + b"." + headers["webhook-timestamp"].encode() + b"." + body
    expected = base64.b64encode(hmac.digest(key, message, hashlib.sha256)).decode()
    return f"v1,{expected}" in headers["webhook-signature"].split(" ")


@contextmanager
def run_receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers["content-length"]))
            self.send_response(receiver.receive(self.path, headers, body))
            # A response with the status 204 has no body.
            self.send_header("content-length", str(len(receiver.response_body)))
            # The sender may have been killed, and closes the connection as soon as it knows the status.
            with suppress(ConnectionError):
                self.end_headers()
                self.wfile.write(receiver.response_body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        # With the default of 5, clients that connect all at once wait for a second.
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

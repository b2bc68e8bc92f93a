"""The mock target is tested as a process, over real connections."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from eventservice.devtools import mock_target
from eventservice.devtools.mock_target import PATHS, Target


class Running:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port

    def call(
        self, path: str, method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            content = response.read()
            return response.status, json.loads(content) if content else None

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)


@contextmanager
def running(*arguments: str) -> Iterator[Running]:
    command = [sys.executable, "-m", "eventservice.devtools.mock_target", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            line = process.stdout.readline()
            assert line.startswith("listening on http://127.0.0.1:")
            yield Running(process, int(line.rpartition(":")[2]))
        finally:
            process.kill()


@pytest.fixture(scope="module")
def target() -> Iterator[Running]:
    with running() as shared:
        yield shared


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def build_key_header(key: str, header: str = "Idempotency-Key") -> dict[str, str]:
    return {header: key}


@pytest.mark.parametrize("path", ["/", "/ok", "/ok?page=2"])
def test_it_responds_with_ok(target: Running, path: str) -> None:
    assert target.call(path) == (200, {"ok": True})


def test_unknown_paths_are_not_found_and_the_answer_lists_the_known_ones(target: Running) -> None:
    status, answer = target.call("/nowhere")
    assert (status, answer["error"]) == (404, "no such path")
    assert answer["paths"] == list(PATHS)


def test_every_path_is_listed_and_described() -> None:
    names = {path.split("/")[1] for path in PATHS}
    assert names == {*Target()._routes, "stats"} - {""}
    assert mock_target.__doc__
    assert [path for path in PATHS if f" {path} " not in mock_target.__doc__] == []


def test_it_echoes_the_request(target: Running) -> None:
    status, echoed = target.call("/echo?a=1", "PUT", "grüße".encode(), {"X-Attempt": "2"})

    assert status == 200
    assert (echoed["method"], echoed["path"], echoed["body"]) == ("PUT", "/echo?a=1", "grüße")
    assert echoed["headers"]["x-attempt"] == "2"


@pytest.mark.parametrize("code", [200, 204, 302, 304, 404, 429, 500, 599])
def test_it_responds_with_the_given_status(target: Running, code: int) -> None:
    assert target.call(f"/status/{code}")[0] == code


@pytest.mark.parametrize(
    "path",
    [
        "/status/100",
        "/status/600",
        "/status/x",
        "/status",
        "/delay/-1",
        "/delay/nan",
        "/delay/",
        "/flaky/often",
    ],
)
def test_it_rejects_invalid_arguments(target: Running, path: str) -> None:
    assert target.call(path)[0] == 400


def test_it_responds_to_head_without_a_body(target: Running) -> None:
    assert target.call("/ok", "HEAD") == (200, None)


def test_a_delayed_response_is_never_early(target: Running) -> None:
    started = time.monotonic()

    assert target.call("/delay/0.2") == (200, {"ok": True})
    assert time.monotonic() - started >= 0.2


def test_hundreds_of_delayed_responses_wait_concurrently(target: Running) -> None:
    started = time.monotonic()
    waiting = [target.connect() for _ in range(300)]
    for connection in waiting:
        connection.sendall(b"GET /delay/0.3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answers = []
    for connection in waiting:
        with connection:
            answers.append(read_all(connection))

    assert all(answer.endswith(b'{"ok": true}') for answer in answers)
    assert time.monotonic() - started < 5  # one after the other would take 90 s


@pytest.mark.parametrize("header", ["Idempotency-Key", "Webhook-Id"])
def test_a_flaky_path_fails_the_given_number_of_times_for_each_key(target: Running, header: str) -> None:
    statuses = [target.call("/flaky/2", headers=build_key_header(f"{header}-a", header))[0] for _ in range(4)]

    assert statuses == [503, 503, 200, 200]
    assert target.call("/flaky/2", headers=build_key_header(f"{header}-b", header))[0] == 503


def test_a_callback_is_asked_to_retry_once(target: Running) -> None:
    answers = [target.call("/callback-retry", headers=build_key_header("timer-1"))[1] for _ in range(3)]

    assert answers == [{"ok": False}, {"ok": True}, {"ok": True}]


def test_it_closes_the_connection_without_a_response(target: Running) -> None:
    with pytest.raises(http.client.RemoteDisconnected):
        target.call("/close")


def test_one_connection_carries_many_requests(target: Running) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", target.port, timeout=10)) as connection:
        for _ in range(3):
            connection.request("POST", "/ok", b"x" * 5000)
            assert connection.getresponse().read() == b'{"ok": true}'


def test_pipelined_requests_are_answered_in_order_behind_a_delayed_one(target: Running) -> None:
    with target.connect() as connection:
        connection.sendall(
            b"GET /delay/0.1 HTTP/1.1\r\n\r\nGET /status/201 HTTP/1.1\r\n\r\nGET /close HTTP/1.1\r\n\r\n"
        )
        answers = read_all(connection)

    assert answers.count(b"HTTP/1.1 ") == 2
    assert answers.index(b" 200 OK") < answers.index(b" 201 Created")


def test_a_request_may_arrive_byte_by_byte(target: Running) -> None:
    with target.connect() as connection:
        for byte in b"POST /echo HTTP/1.1\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc":
            connection.sendall(bytes([byte]))
        assert b'"body": "abc"' in read_all(connection)


def test_a_client_that_expects_100_continue_receives_it(target: Running) -> None:
    with target.connect() as connection:
        connection.sendall(
            b"POST /ok HTTP/1.1\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        )
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"hi")
        assert read_all(connection).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /ok HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /ok HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST /ok HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"GET /ok HTTP/1.1\r\nX: " + b"x" * 70_000, 431),
    ],
)
def test_it_rejects_malformed_requests_and_closes_the_connection(
    target: Running, request_bytes: bytes, status: int
) -> None:
    with target.connect() as connection:
        connection.sendall(request_bytes)
        assert connection.recv(12) == f"HTTP/1.1 {status}".encode()


def test_stats_are_not_counted_themselves() -> None:
    with running() as target:
        for path in ("/ok", "/ok", "/status/500", "/stats"):
            target.call(path)
        stats = target.call("/stats")[1]

    assert (stats["received"], stats["by_status"]) == (3, {"200": 2, "500": 1})


def test_the_record_has_one_line_for_each_request(tmp_path: Path) -> None:
    record = tmp_path / "witness.jsonl"
    headers = {"X-Service-Call-Id": "call-1", "X-Attempt": "3", "Webhook-Id": "key-1"}
    before = time.time()
    with running("--record", str(record)) as target:
        target.call("/ok?x=1", "POST", b"12345", headers)
        target.call("/status/500")
        assert target.stop() == 0

    first, second = (json.loads(line) for line in record.read_text().splitlines())
    assert before - 0.001 <= first.pop("time") <= second["time"] <= time.time()
    assert first == {
        "method": "POST",
        "path": "/ok?x=1",
        "service_call_id": "call-1",
        "attempt": "3",
        "idempotency_key": "key-1",
        "body_length": 5,
    }
    assert (second["path"], second["service_call_id"], second["body_length"]) == ("/status/500", None, 0)


def test_a_request_is_recorded_before_it_is_answered(tmp_path: Path) -> None:
    record = tmp_path / "witness.jsonl"
    record.write_text('{"path": "/of-an-earlier-run"}\n')
    with running("--record", str(record)) as target, target.connect() as connection:
        connection.sendall(b"GET /delay/60 HTTP/1.1\r\n\r\n")
        deadline = time.monotonic() + 5
        while len(lines := record.read_text().splitlines()) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)

    assert [json.loads(line)["path"] for line in lines] == ["/of-an-earlier-run", "/delay/60"]


def test_it_stops_on_sigterm_with_clients_waiting() -> None:
    with running() as target, target.connect() as connection:
        connection.sendall(b"GET /delay/60 HTTP/1.1\r\n\r\n")
        assert target.stop() == 0

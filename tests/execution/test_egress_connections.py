"""Kept connections: who shares them, which are not kept, and what happens if the server has closed one."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from eventservice.kernel.ids import new_id
from eventservice.runtime.dispatcher import EgressTransport
from execution.connections import MAX_POOLS, ConnectionPools
from execution.egress import Limits
from execution.outcome import Errored, ErrorKind, Outcome, Responded
from execution.redaction import MASK
from execution.url_rules import parse_target
from outbox.models import WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook.deliverer import WebhookRequest
from tests.execution import hostile
from tests.execution.hostile import OK, answering, build_attempt, gather, perform, running, serving

# Takes the head of the next request on the connection for its body.
SMUGGLED = b"POST /smuggled HTTP/1.1\r\nHost: a\r\nContent-Length: 60\r\n\r\n"


class Seen(NamedTuple):
    method: str
    path: str
    body: bytes


class StandardServer(ThreadingHTTPServer):
    """Python's own server, which leaves it to the handler to read the body of a request."""

    daemon_threads = True
    url: str

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), StandardHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.seen: list[Seen] = []
        self.connections = 0

    def get_request(self) -> tuple[socket.socket, object]:
        self.connections += 1
        return super().get_request()


class StandardHandler(BaseHTTPRequestHandler):
    """Answers like most handlers: the body is read where one is expected, except at /unread."""

    protocol_version = "HTTP/1.1"
    server: StandardServer

    def _respond(self) -> None:
        expects_body = self.command == "POST" and not self.path.startswith("/unread")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))) if expects_body else b""
        self.server.seen.append(Seen(self.command, self.path, body))
        text = f"{self.command} {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_POST = do_HEAD = do_DELETE = do_OPTIONS = _respond  # noqa: N815 - http.server's names

    def log_message(self, *_args: object) -> None:
        pass


@contextmanager
def standard_server() -> Iterator[StandardServer]:
    with StandardServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(5)


def read_text(outcome: Outcome) -> str:
    assert isinstance(outcome, Responded), outcome
    return outcome.body.decode()


# --- who shares a connection --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS"])
def test_a_request_smuggled_in_a_body_does_not_reach_the_request_of_another_tenant(method: str) -> None:
    with standard_server() as server, running() as egress:
        read_text(
            perform(egress, build_attempt(f"{server.url}/mine", method, body=SMUGGLED, tenant="attacker"))
        )
        victim = build_attempt(
            f"{server.url}/theirs", headers=[("Authorization", "Bearer s3cret")], tenant="victim"
        )
        assert read_text(perform(egress, victim)) == "GET /theirs"
        assert not any(b"s3cret" in seen.body for seen in server.seen)


@pytest.mark.parametrize("tenants", [("attacker", "victim"), ("attacker", None)])
def test_a_post_that_the_server_does_not_read_does_not_reach_another_tenant(
    tenants: tuple[str, str | None],
) -> None:
    """Nothing tells whether a server reads a small body, so this connection is kept, but for its own tenant."""
    with standard_server() as server, running() as egress:
        perform(egress, build_attempt(f"{server.url}/unread", "POST", body=SMUGGLED * 2, tenant=tenants[0]))
        for _ in range(3):
            outcome = perform(egress, build_attempt(f"{server.url}/theirs", tenant=tenants[1]))
            assert read_text(outcome) == "GET /theirs"


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS"])
def test_no_connection_is_kept_after_a_body_whose_method_does_not_define_one(method: str) -> None:
    with answering(lambda _request: OK if method != "HEAD" else OK[:-2]) as server, running() as egress:
        for _ in range(2):
            assert isinstance(perform(egress, build_attempt(server.url(), method, body=b"{}")), Responded)
            assert isinstance(perform(egress, build_attempt(server.url(), method)), Responded)
    # The request without a body leaves its connection to the next one.
    assert server.connections == 3


def test_tenants_and_credentials_have_connections_of_their_own() -> None:
    with answering(lambda _request: OK) as server, running() as egress:
        for _ in range(3):
            for tenant in ("a", "b"):
                for credential in (None, "x", "y"):
                    attempt = build_attempt(server.url(), tenant=tenant)._replace(credential=credential)
                    assert isinstance(perform(egress, attempt), Responded)
    assert server.connections == 6


@pytest.mark.parametrize("host", ["127.0.0.1", "service.example", "[::1]"])
def test_connections_are_kept_for_names_and_addresses_alike(host: str) -> None:
    def behave(connection: socket.socket) -> None:
        while True:
            hostile.read_head(connection)
            connection.sendall(OK)

    bind = "::1" if host == "[::1]" else "127.0.0.1"
    if bind == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("This system has no IPv6.")
    with serving(behave, host=bind) as server, running(lookup=lambda _host: ["127.0.0.1"]) as egress:
        for _ in range(4):
            outcome = perform(egress, build_attempt(f"http://{host}:{server.port}/"))
            assert isinstance(outcome, Responded), outcome
    assert server.connections == 1


def test_a_connection_is_kept_if_another_address_was_tried_first() -> None:
    with (
        answering(lambda _request: OK) as server,
        running(lookup=lambda _host: ["::1", "127.0.0.1"]) as egress,
    ):
        for _ in range(3):
            outcome = perform(egress, build_attempt(f"http://service.example:{server.port}/"))
            assert isinstance(outcome, Responded), outcome
    assert server.connections == 1


def test_a_webhook_endpoint_that_does_not_read_bodies_affects_only_its_tenant() -> None:
    with standard_server() as server, running() as egress:
        transport = EgressTransport(lambda: egress, lambda _tenant_id: ())
        statuses = []
        for _ in range(3):
            delivery = WebhookDelivery(tenant_id=new_id(), delivery_id=new_id())
            delivery.endpoint = WebhookEndpoint(
                tenant_id=delivery.tenant_id, url=f"{server.url}/unread?token=s3cret-token"
            )
            request = WebhookRequest(delivery, delivery.endpoint.url, (), b'{"specversion": "1.0"}', 5.0)
            transport.send([request])
            ends_at = time.monotonic() + 10
            while not (results := transport.collect(0.1)) and time.monotonic() < ends_at:
                pass
            statuses += [result.status for result in results]
            assert results[0].body == f"POST /unread?token={MASK}", "an echo of a secret is masked"
        assert statuses == [200, 200, 200]
        assert server.connections == 3


def test_thousands_of_tenants_use_a_bounded_number_of_sockets() -> None:
    limits = Limits(in_flight=40, per_host_connections=40, idle_connection_seconds=60)
    with answering(lambda _request: OK) as server, running(limits=limits) as egress:
        most = 0
        for start in range(0, 2000, 200):
            tenants = range(start, start + 200)
            egress.send([build_attempt(server.url(), key=n, tenant=f"t{n}", timeout=30) for n in tenants])
            outcomes = gather(egress, 200)
            assert [o for o in outcomes if not isinstance(o, Responded)] == []
            most = max(most, count_connections_to(server.port))
        assert most <= 40


def count_connections_to(port: int) -> int:
    """Return the number of this process's established connections to a local port."""
    remote, established = f"0100007F:{port:04X}", "01"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(line[2] == remote and line[3] == established for line in lines)


def test_a_bounded_number_of_pools_is_remembered() -> None:
    pools = ConnectionPools()
    origin = parse_target("http://a.example/").origin
    kept = pools.get(origin, "first")
    for number in range(MAX_POOLS + 10):
        pools.get(origin, number)
        assert pools.get(origin, "first") is kept, "one that is in use is not forgotten"
    assert len(pools) == MAX_POOLS
    assert pools.get(origin, 0).host not in {pools.get(origin, n).host for n in range(100, 200)}


# --- which connections are not kept -------------------------------------------------------------------------------


def test_no_connection_is_kept_if_the_response_came_before_the_request_was_sent() -> None:
    """The server would read the rest of the body as the next request."""
    size = 16 * hostile.MEBIBYTE

    def respond_early(connection: socket.socket) -> None:
        hostile.read_head(connection)
        connection.sendall(OK)
        time.sleep(0.1)
        hostile.wait_until_closed(connection)

    with (
        serving(respond_early) as server,
        running(limits=Limits(request_body=size, idle_connection_seconds=60)) as egress,
    ):
        first = perform(egress, build_attempt(server.url(), "POST", body=bytes(size)))
        assert isinstance(first, Responded), first
        second = perform(egress, build_attempt(server.url(), timeout=2))
        assert isinstance(second, Responded), second
    assert server.connections == 2


def test_a_connection_is_kept_after_a_large_body_that_was_read() -> None:
    limits = Limits(request_body=4 * hostile.MEBIBYTE, idle_connection_seconds=60)
    with answering(lambda _request: OK) as server, running(limits=limits) as egress:
        for size in (100, 5_000, 100_000, hostile.MEBIBYTE, 5_000, 0, 2 * hostile.MEBIBYTE):
            outcome = perform(egress, build_attempt(server.url(), "POST", body=bytes(size)))
            assert isinstance(outcome, Responded), outcome
    assert server.connections == 1


EXTRA = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nextra"


@pytest.mark.parametrize("pause", [0.0, 0.02])
@pytest.mark.parametrize(
    ("method", "response"),
    [
        ("GET", OK),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
        ("GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
    ],
)
def test_no_response_is_left_for_the_next_request(method: str, response: bytes, pause: float) -> None:
    all_sent = threading.Event()

    def behave(connection: socket.socket) -> None:
        while hostile.read_head(connection).split()[1] != b"/next":
            if not pause:
                connection.sendall(response + EXTRA)
            else:
                connection.sendall(response)
                time.sleep(pause)
                connection.sendall(EXTRA)
            all_sent.set()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnext")

    with serving(behave) as server, running(limits=Limits(idle_connection_seconds=60)) as egress:
        perform(egress, build_attempt(server.url(), method))
        assert all_sent.wait(10)
        assert read_text(perform(egress, build_attempt(server.url("/next")))) == "next"


@pytest.mark.parametrize(
    ("announced", "connections"),
    [
        ("max=100, timeout=60", 1),
        ("timeout=0", 3),
        ('Timeout = "0", max=5', 3),
        ("max=100", 1),
        ("timeout=x", 1),
    ],
)
def test_a_connection_is_not_used_longer_than_its_server_announces(announced: str, connections: int) -> None:
    def respond(_request: hostile.Request) -> bytes:
        return f"HTTP/1.1 200 OK\r\nKeep-Alive: {announced}\r\nContent-Length: 0\r\n\r\n".encode()

    with answering(respond) as server, running(limits=Limits(idle_connection_seconds=60)) as egress:
        for _ in range(3):
            assert isinstance(perform(egress, build_attempt(server.url())), Responded)
    assert server.connections == connections


# --- connections that the server has closed -----------------------------------------------------------------------


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def half_close(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("end", [socket.socket.close, reset, half_close])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_connection_that_the_server_has_closed_is_not_used(end: hostile.Behavior, method: str) -> None:
    """The server closes each connection after its response without announcing it. Nothing was sent on the closed
    connection, so the request can be sent on another one, whatever its method is.
    """
    seen: list[bytes] = []
    has_ended = threading.Event()

    def respond_once(connection: socket.socket) -> None:
        seen.append(hostile.read_head(connection))
        connection.sendall(OK)
        end(connection)
        has_ended.set()
        hostile.wait_until_closed(connection)

    body = b"{}" if method == "POST" else None
    with serving(respond_once) as server, running() as egress:
        for number in range(6):
            outcome = perform(egress, build_attempt(server.url(f"/{number}"), method, body=body))
            assert read_text(outcome) == "ok"
            assert has_ended.wait(10)
            has_ended.clear()
    assert [head.split()[1] for head in seen] == [b"/%d" % number for number in range(6)]


def test_a_request_that_may_have_been_read_is_not_sent_again_and_the_next_ones_get_new_connections() -> None:
    """The server closes the connection while the second request is on its way."""
    seen: list[bytes] = []

    def respond_once(connection: socket.socket) -> None:
        seen.append(hostile.read_head(connection).split()[1])
        connection.sendall(OK)
        seen.append(hostile.read_head(connection).split()[1])

    with serving(respond_once) as server, running() as egress:
        outcomes = [perform(egress, build_attempt(server.url(f"/{number}"))) for number in range(6)]
    lost = outcomes.pop(1)
    assert isinstance(lost, Errored)
    assert lost.kind is ErrorKind.PROTOCOL
    assert lost.may_have_been_sent
    assert [type(outcome) for outcome in outcomes] == [Responded] * 5
    assert seen == [b"/%d" % number for number in range(6)]


def test_a_request_on_a_new_connection_keeps_its_deadline() -> None:
    """The time that the attempt has spent before it gets another connection counts."""

    has_ended = threading.Event()

    def respond_once(connection: socket.socket) -> None:
        if hostile.read_head(connection).split()[1] == b"/first":
            connection.sendall(OK)
            connection.close()
            has_ended.set()
        hostile.wait_until_closed(connection)

    with serving(respond_once) as server, running() as egress:
        perform(egress, build_attempt(server.url("/first")))
        assert has_ended.wait(10)
        outcome = perform(egress, build_attempt(server.url("/hangs"), timeout=0.5))
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.TIMEOUT
    assert outcome.may_have_been_sent


def test_an_attempt_whose_new_connection_fails_was_not_sent() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def respond_and_leave() -> None:
        connection, _ = listener.accept()
        hostile.read_head(connection)
        listener.close()
        connection.sendall(OK)
        connection.close()

    thread = threading.Thread(target=respond_and_leave)
    thread.start()
    with running() as egress:
        assert isinstance(perform(egress, build_attempt(f"http://127.0.0.1:{port}/")), Responded)
        thread.join(5)
        outcome = perform(egress, build_attempt(f"http://127.0.0.1:{port}/", "POST", body=b"x"))
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.CONNECT
    assert not outcome.may_have_been_sent
    assert "invalid" not in f"{outcome.message} {outcome.details}", "the name of the pool is internal"

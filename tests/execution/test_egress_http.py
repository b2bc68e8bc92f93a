"""Ordinary HTTP: requests are sent as given, and responses are returned as received."""

import socket

import pytest

from eventservice.kernel.boot_time import read_boot_time
from execution.egress import Limits
from execution.outcome import Errored, ErrorKind, Responded
from tests.execution import hostile
from tests.execution.hostile import OK, Request, answering, build_attempt, gather, perform, running, serving


def ok(_request: Request) -> bytes:
    return OK


def head_ok(_request: Request) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("body", [None, b"", b'{"a": 1}', bytes(range(256)) * 300])
def test_it_sends_each_method_with_and_without_a_body(method: str, body: bytes | None) -> None:
    with answering(ok) as server, running() as egress:
        outcome = perform(egress, build_attempt(server.url("/a?b=c"), method, body=body))
    assert isinstance(outcome, Responded), outcome
    assert (outcome.status, outcome.body, outcome.body_size) == (200, b"ok", 2)
    [request] = server.requests
    assert (request.method, request.target, request.body) == (method, "/a?b=c", body or b"")


def test_it_reads_no_body_after_head() -> None:
    with answering(head_ok) as server, running() as egress:
        outcome = perform(egress, build_attempt(server.url(), "HEAD"))
    assert isinstance(outcome, Responded), outcome
    assert (outcome.status, outcome.body, outcome.body_size) == (200, b"", 0)
    assert server.requests[0].method == "HEAD"


def test_a_pooled_handle_carries_nothing_over_to_the_next_attempt() -> None:
    sequence = [
        build_attempt("/1", "POST", [("X-One", "1"), ("Content-Type", "a/b"), ("Accept", "c/d")], b"body"),
        build_attempt("/2", "GET"),
        build_attempt("/3", "HEAD"),
        build_attempt("/4", "PUT", body=b"again"),
        build_attempt("/5", "DELETE"),
    ]
    with answering(lambda r: OK[:-2] if r.method == "HEAD" else OK) as server, running() as egress:
        for step in sequence:
            outcome = perform(
                egress, build_attempt(server.url(step.url), step.method, step.headers, step.body)
            )
            assert isinstance(outcome, Responded), outcome
    assert [(r.method, r.target, r.body) for r in server.requests] == [
        (step.method, step.url, step.body or b"") for step in sequence
    ]
    for request in server.requests[1:]:
        assert {name for name, _ in request.headers} <= {"Host", "Content-Length"}
    assert server.connections == 1


def test_a_request_is_not_sent_after_its_time() -> None:
    """The kept connection can be used by the next attempt."""
    with answering(ok) as server, running() as egress:
        for seconds in (60.0, -0.001, 60.0):
            attempt = build_attempt(server.url())._replace(send_by=read_boot_time() + seconds)
            outcome = perform(egress, attempt)
            if seconds > 0:
                assert isinstance(outcome, Responded), outcome
            else:
                assert isinstance(outcome, Errored)
                assert (outcome.kind, outcome.may_have_been_sent) == (ErrorKind.EXPIRED, False)
    assert len(server.requests) == 2


def test_it_adds_no_headers_but_host_and_length() -> None:
    with answering(ok) as server, running() as egress:
        perform(egress, build_attempt(server.url(), "POST", body=b"x"))
        perform(egress, build_attempt(server.url()))
    assert server.requests[0].headers == [("Host", server.address), ("Content-Length", "1")]
    assert server.requests[1].headers == [("Host", server.address)]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_it_gives_no_body_a_content_type(method: str) -> None:
    with answering(ok) as server, running() as egress:
        perform(egress, build_attempt(server.url(), method))
    assert server.requests[0].headers == [("Host", server.address), ("Content-Length", "0")]


def test_it_does_not_ask_for_a_100_continue() -> None:
    with answering(ok) as server, running() as egress:
        outcome = perform(egress, build_attempt(server.url(), "PUT", body=bytes(900_000)))
    assert isinstance(outcome, Responded)
    assert server.requests[0].header("Expect") is None


def test_it_sends_headers_as_given() -> None:
    headers = [
        ("X-Twice", "one"),
        ("X-Twice", "two"),
        ("X-Empty", ""),
        ("X-Latin", "caf\xe9"),
        ("User-Agent", "event-service/1"),
        ("Accept-Encoding", "gzip"),
        ("X-Colons", "a: b: c; d"),
    ]
    with answering(ok) as server, running() as egress:
        perform(egress, build_attempt(server.url(), headers=headers))
    sent = [(name, value.strip()) for name, value in server.requests[0].headers if name != "Host"]
    assert [(name.rstrip(":"), value) for name, value in sent] == headers


def test_it_returns_response_headers_in_order_with_duplicates_and_without_trailers() -> None:
    response = (
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        b"HTTP/1.1 201 Created\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Latin: caf\xe9\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\nX-Trailer: t\r\n\r\n"
    )
    with answering(lambda _request: response) as server, running() as egress:
        outcome = perform(egress, build_attempt(server.url()))
    assert isinstance(outcome, Responded), outcome
    assert outcome.status == 201
    assert outcome.headers == (
        ("Set-Cookie", "a=1"),
        ("Set-Cookie", "b=2"),
        ("X-Latin", "café"),
        ("Transfer-Encoding", "chunked"),
    )
    assert outcome.body == b"abcdefg"


def test_it_keeps_no_cookies() -> None:
    with (
        answering(lambda _r: b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nContent-Length: 0\r\n\r\n") as server,
        running() as egress,
    ):
        perform(egress, build_attempt(server.url()))
        perform(egress, build_attempt(server.url()))
    assert server.requests[1].header("Cookie") is None


@pytest.mark.parametrize("status", [204, 301, 302, 303, 307, 308, 304, 400, 401, 407, 429, 500, 503, 599])
def test_every_status_is_a_response(status: int) -> None:
    line = b"HTTP/1.1 %d X\r\nLocation: /elsewhere\r\nWWW-Authenticate: Basic\r\n" % status
    length = b"" if status in (204, 304) else b"Content-Length: 0\r\n"
    with answering(lambda _request: line + length + b"\r\n") as server, running() as egress:
        outcome = perform(egress, build_attempt(server.url()))
    assert isinstance(outcome, Responded), outcome
    assert outcome.status == status
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("response", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.0 200 OK\r\n\r\n\x00\xff\x00", b"\x00\xff\x00"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", b"abc"),
    ],
)
def test_it_reads_bodies_as_they_are(response: bytes, body: bytes) -> None:
    with serving(hostile.send_once(response)) as server, running() as egress:
        outcome = perform(egress, build_attempt(server.url()))
    assert isinstance(outcome, Responded), outcome
    assert outcome.body == body


def test_a_long_body_is_truncated_and_its_full_size_counted() -> None:
    with (
        serving(hostile.send_zeros(hostile.MEBIBYTE)) as server,
        running(limits=Limits(keep_body=100)) as egress,
    ):
        outcome = perform(egress, build_attempt(server.url()))
    assert isinstance(outcome, Responded)
    assert (len(outcome.body), outcome.body_size) == (100, hostile.MEBIBYTE)


@pytest.mark.parametrize(("kilobytes", "fits"), [(60, True), (70, False), (200, False)])
@pytest.mark.parametrize("blocks", [1, 5])
def test_headers_are_counted_over_all_blocks(kilobytes: int, fits: bool, blocks: int) -> None:
    """The limit of libcurl itself is 300 KB, and several times that with 1xx responses."""
    filler = (b"X-Filler: " + b"a" * 988 + b"\r\n") * (kilobytes // blocks)
    hints = b"HTTP/1.1 103 Early Hints\r\n" + filler + b"\r\n"
    last = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + filler + b"\r\nok"
    with serving(hostile.send_once(hints * (blocks - 1) + last)) as server, running() as egress:
        outcome = perform(egress, build_attempt(server.url()))
    if fits:
        assert isinstance(outcome, Responded), outcome
    else:
        assert isinstance(outcome, Errored)
        assert outcome.kind is ErrorKind.TOO_LARGE


def test_connections_are_reused() -> None:
    """No wave needs more connections than it has attempts, and each reuses those of the wave before."""
    with answering(ok) as server, running(limits=Limits(idle_connection_seconds=60)) as egress:
        for wave in range(20):
            egress.send([build_attempt(server.url(), key=(wave, n), timeout=30) for n in range(20)])
            outcomes = gather(egress, 20)
            assert {o.key for o in outcomes if isinstance(o, Responded)} == {(wave, n) for n in range(20)}
    assert len(server.requests) == 400
    assert server.connections <= 20


def test_a_host_gets_no_more_connections_than_its_limit() -> None:
    with answering(ok) as server, running(limits=Limits(per_host_connections=3)) as egress:
        egress.send([build_attempt(server.url(), key=n) for n in range(200)])
        outcomes = gather(egress, 200)
    assert len([o for o in outcomes if isinstance(o, Responded)]) == 200
    assert server.connections <= 3


def test_a_request_is_never_written_twice() -> None:
    """libcurl would repeat the second request on a new connection, because the reused one is closed without a response."""
    seen: list[bytes] = []

    def respond_once_then_close(connection: socket.socket) -> None:
        seen.append(hostile.read_head(connection))
        connection.sendall(OK)
        seen.append(hostile.read_head(connection))

    with serving(respond_once_then_close) as server, running() as egress:
        assert isinstance(perform(egress, build_attempt(server.url("/1"))), Responded)
        outcome = perform(egress, build_attempt(server.url("/2"), "POST", body=b"x"))
    assert isinstance(outcome, Errored), outcome
    assert outcome.kind is ErrorKind.PROTOCOL
    assert outcome.may_have_been_sent
    assert [head.split()[1] for head in seen] == [b"/1", b"/2"]


@pytest.mark.parametrize("body", [None, b"", b"x"])
def test_a_head_request_may_have_a_body_and_its_response_has_none(body: bytes | None) -> None:
    head = b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    with answering(lambda request: head if request.method == "HEAD" else OK) as server, running() as egress:
        for method in ("HEAD", "GET", "HEAD"):
            outcome = perform(egress, build_attempt(server.url(), method, body=body))
            assert isinstance(outcome, Responded), outcome
            assert outcome.body == (b"" if method == "HEAD" else b"ok")
    assert [request.body for request in server.requests] == [body or b""] * 3


def test_the_path_reaches_the_server_as_it_is() -> None:
    with answering(ok) as server, running() as egress:
        perform(egress, build_attempt(server.url("/a/../b/./c//d?x=%2e%2e&y={1,2}[3]#fragment")))
    assert server.requests[0].target == "/a/../b/./c//d?x=%2e%2e&y={1,2}[3]"


def test_nobody_listening_is_a_connect_error() -> None:
    with hostile.listening_only() as server:
        pass
    with running() as egress:
        outcome = perform(egress, build_attempt(server.url("/secret?token=abc")))
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.CONNECT
    assert not outcome.may_have_been_sent
    assert "Connection refused" in outcome.message
    assert "abc" not in outcome.message


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with answering(ok) as server, running() as egress:
        assert isinstance(perform(egress, build_attempt(server.url())), Responded)


def test_timings_add_up() -> None:
    with answering(ok) as server, running(lookup=lambda _host: ["127.0.0.1"]) as egress:
        outcome = perform(egress, build_attempt(f"http://service.example:{server.port}/"))
        again = perform(egress, build_attempt(f"http://service.example:{server.port}/"))
    assert isinstance(outcome, Responded)
    times = outcome.timings
    assert set(times.phases) == {"dnsMs", "connectMs", "firstByteMs"}
    assert set(again.timings.phases) == {"firstByteMs"}
    assert times.dns_ms > 0
    assert times.connect_ms > 0
    assert times.tls_ms == 0
    assert times.dns_ms + times.connect_ms <= times.first_byte_ms <= times.total_ms
    assert server.requests[0].header("Host") == f"service.example:{server.port}"

"""An attempt ends within its timeout plus 0.5 s, whatever the server does, and its outcome says why."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import pytest

from execution.egress import Limits
from execution.outcome import Errored, ErrorKind, Outcome, Responded
from tests.database_clock import allow_for_load
from tests.execution import hostile
from tests.execution.hostile import build_attempt, gather, perform, running, serving

TIMEOUT = 0.4
TOLERANCE = allow_for_load(0.5)
MAX_SECONDS = TIMEOUT + TOLERANCE
LONG_TIMEOUT = 5.0  # for attempts that the server ends: its thread may be slow on a busy machine

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
LONG = HEAD + b"Content-Length: 1000000\r\n\r\n"

HOSTILE: dict[str, tuple[hostile.Behavior, ErrorKind]] = {
    "hangs before the status": (hostile.say_nothing, ErrorKind.TIMEOUT),
    "hangs in the status line": (
        hostile.send_once(b"HTTP/1.1 2", then=hostile.wait_until_closed),
        ErrorKind.TIMEOUT,
    ),
    "hangs in the headers": (
        hostile.send_once(HEAD + b"X-A: b\r\n", then=hostile.wait_until_closed),
        ErrorKind.TIMEOUT,
    ),
    "hangs in the body": (
        hostile.send_once(LONG + b"a", then=hostile.wait_until_closed),
        ErrorKind.TIMEOUT,
    ),
    "hangs in a chunk": (
        hostile.send_once(CHUNKED + b"ff\r\nabc", then=hostile.wait_until_closed),
        ErrorKind.TIMEOUT,
    ),
    "hangs before the last chunk": (
        hostile.send_once(CHUNKED + b"1\r\na\r\n", then=hostile.wait_until_closed),
        ErrorKind.TIMEOUT,
    ),
    "drips its status line": (hostile.drip(HEAD * 20), ErrorKind.TIMEOUT),
    "drips its headers": (hostile.repeat(HEAD, b"X-A: b\r\n", 0.05), ErrorKind.TIMEOUT),
    "drips one header": (hostile.repeat(HEAD + b"X-A: ", b"b", 0.05), ErrorKind.TIMEOUT),
    "drips its body": (hostile.repeat(LONG, b"a", 0.05), ErrorKind.TIMEOUT),
    "drips its chunks": (hostile.repeat(CHUNKED, b"1\r\na\r\n", 0.05), ErrorKind.TIMEOUT),
    "drips 1xx responses": (
        hostile.repeat(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", 0.05),
        ErrorKind.TIMEOUT,
    ),
    "hangs after asking to continue": (
        hostile.send_once(b"HTTP/1.1 100 Continue\r\n\r\nH", then=hostile.wait_until_closed),
        ErrorKind.TIMEOUT,
    ),
    "sends a body without end": (hostile.repeat(HEAD + b"\r\n", bytes(65536)), ErrorKind.TOO_LARGE),
    "sends chunks without end": (
        hostile.repeat(CHUNKED, b"10000\r\n" + bytes(65536) + b"\r\n"),
        ErrorKind.TOO_LARGE,
    ),
    "sends headers without end": (
        hostile.repeat(HEAD, b"X-Filler: abcdefgh\r\n" * 100),
        ErrorKind.TOO_LARGE,
    ),
    "sends one header without end": (
        hostile.repeat(HEAD + b"X-Filler: ", b"a" * 8192),
        ErrorKind.TOO_LARGE,
    ),
    "sends a status line without end": (
        hostile.repeat(b"HTTP/1.1 200 ", b"a" * 8192),
        ErrorKind.TOO_LARGE,
    ),
    "floods with 1xx responses": (
        hostile.repeat(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 100),
        ErrorKind.TOO_LARGE,
    ),
    "sends trailers without end": (
        hostile.repeat(CHUNKED + b"0\r\n", b"X-Trailer: abcdefgh\r\n" * 100),
        ErrorKind.TOO_LARGE,
    ),
    "closes without an answer": (hostile.send_once(), ErrorKind.PROTOCOL),
    "closes one way and listens on": (
        hostile.send_once(then=hostile.half_close),
        ErrorKind.PROTOCOL,
    ),
    "closes one way inside the body": (
        hostile.send_once(LONG, then=hostile.half_close),
        ErrorKind.PROTOCOL,
    ),
    "closes inside the headers": (hostile.send_once(HEAD + b"X-A: "), ErrorKind.PROTOCOL),
    "closes inside a chunk": (hostile.send_once(CHUNKED + b"ff\r\nabc"), ErrorKind.PROTOCOL),
    "resets without an answer": (hostile.send_once(then=hostile.reset), ErrorKind.PROTOCOL),
    "resets inside the body": (
        hostile.send_once(LONG + b"abc", then=hostile.reset),
        ErrorKind.PROTOCOL,
    ),
    "talks another protocol": (
        hostile.send_once(b"220 smtp.example.com ESMTP\r\n"),
        ErrorKind.PROTOCOL,
    ),
    "talks HTTP/0.9": (hostile.send_once(b"<html>hello</html>"), ErrorKind.PROTOCOL),
    "sends NUL bytes": (hostile.send_once(bytes(4096)), ErrorKind.PROTOCOL),
    "sends a bad chunk size": (hostile.send_once(CHUNKED + b"zz\r\nabc"), ErrorKind.PROTOCOL),
    "sends a chunk size that overflows": (
        hostile.send_once(CHUNKED + b"f" * 40 + b"\r\n"),
        ErrorKind.PROTOCOL,
    ),
    "sends a negative length": (
        hostile.send_once(HEAD + b"Content-Length: -5\r\n\r\n"),
        ErrorKind.PROTOCOL,
    ),
    "switches protocols unasked": (
        hostile.send_once(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", then=hostile.wait_until_closed
        ),
        ErrorKind.TIMEOUT,
    ),
}


def measure(run: Callable[[], Outcome]) -> tuple[Outcome, float]:
    started = time.monotonic()
    outcome = run()
    return outcome, time.monotonic() - started


@pytest.mark.parametrize("name", HOSTILE)
def test_an_attempt_ends_in_time_when_the_server(name: str) -> None:
    behavior, kind = HOSTILE[name]
    timeout = TIMEOUT if kind is ErrorKind.TIMEOUT else LONG_TIMEOUT
    with serving(behavior) as server, running() as egress:
        outcome, seconds = measure(lambda: perform(egress, build_attempt(server.url(), timeout=timeout)))
    assert isinstance(outcome, Errored), outcome
    assert seconds <= timeout + TOLERANCE
    assert outcome.kind is kind, outcome
    assert outcome.may_have_been_sent


def test_an_attempt_ends_when_the_server_resets_at_once() -> None:
    """The reset may be noticed while connecting, or later, when the request may have been sent."""
    with serving(hostile.reset) as server, running() as egress:
        egress.send([build_attempt(server.url(), timeout=LONG_TIMEOUT, key=n) for n in range(100)])
        outcomes = gather(egress, 100)
    assert len(outcomes) == 100
    seen = {(o.kind, o.may_have_been_sent) for o in outcomes if isinstance(o, Errored)}
    assert seen <= {(ErrorKind.CONNECT, False), (ErrorKind.PROTOCOL, True)}


def test_an_attempt_ends_in_time_when_the_server_never_reads_the_request() -> None:
    with (
        serving(hostile.never_read) as server,
        running(limits=Limits(request_body=50_000_000)) as egress,
    ):
        posted = build_attempt(server.url(), "POST", body=bytes(40_000_000), timeout=TIMEOUT)
        outcome, seconds = measure(lambda: perform(egress, posted))
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.TIMEOUT
    assert seconds <= MAX_SECONDS
    assert outcome.may_have_been_sent


@pytest.mark.parametrize(
    ("where", "phase"),
    [
        (hostile.refusing_to_accept, "connecting"),
        (hostile.listening_only, "waiting for the response"),
    ],
)
def test_an_attempt_ends_in_time_when_nobody_accepts(
    where: Callable[[], AbstractContextManager[hostile.Server]], phase: str
) -> None:
    with where() as server, running() as egress:
        outcome, seconds = measure(lambda: perform(egress, build_attempt(server.url(), timeout=TIMEOUT)))
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.TIMEOUT
    assert outcome.details["phase"] == phase
    assert outcome.may_have_been_sent == (phase != "connecting")
    assert seconds <= MAX_SECONDS


def test_an_attempt_ends_in_time_when_the_tls_handshake_hangs() -> None:
    with hostile.listening_only() as server, running() as egress:
        url = f"https://{server.address}/"
        outcome, seconds = measure(lambda: perform(egress, build_attempt(url, timeout=TIMEOUT)))
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.TIMEOUT
    assert outcome.details["phase"] == "in the TLS handshake"
    assert not outcome.may_have_been_sent
    assert seconds <= MAX_SECONDS


def hanging_lookup(release: threading.Event) -> Callable[[str], Sequence[str]]:
    def look_up(_host: str) -> Sequence[str]:
        release.wait(20)
        return ["127.0.0.1"]

    return look_up


def test_an_attempt_ends_in_time_when_dns_hangs() -> None:
    release = threading.Event()
    with running(lookup=hanging_lookup(release)) as egress:
        outcome, seconds = measure(
            lambda: perform(egress, build_attempt("http://slow.example/", timeout=TIMEOUT))
        )
        release.set()
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.TIMEOUT
    assert not outcome.may_have_been_sent
    assert seconds <= MAX_SECONDS


def test_a_lookup_that_takes_longer_than_its_own_limit_is_a_dns_error() -> None:
    release = threading.Event()
    with running(limits=Limits(dns_timeout=0.2), lookup=hanging_lookup(release)) as egress:
        outcome = perform(egress, build_attempt("http://slow.example/", timeout=30))
        release.set()
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.DNS
    assert not outcome.may_have_been_sent


def test_closing_does_not_wait_for_a_lookup_that_hangs() -> None:
    release = threading.Event()
    with running(lookup=hanging_lookup(release)) as egress:
        egress.send([build_attempt("http://slow.example/", timeout=30)])
        started = time.monotonic()
        egress.close()
        seconds = time.monotonic() - started
        outcomes = egress.collect(0)
        release.set()
    assert seconds < 5
    assert [o.kind for o in outcomes if isinstance(o, Errored)] == [ErrorKind.INTERRUPTED]


def test_thousands_of_hanging_attempts_do_not_delay_another() -> None:
    """There are more of them than select() can watch."""
    with (
        hostile.listening_only() as hanging,
        hostile.answering(lambda _request: hostile.OK) as good,
        running() as egress,
    ):
        egress.send([build_attempt(hanging.url(), timeout=30, key=n) for n in range(1500)])
        assert egress._loop is not None
        while len(egress._loop._active) < 1500:
            time.sleep(0.01)
        outcome = perform(egress, build_attempt(good.url()))
        assert isinstance(outcome, Responded)
        assert len(egress._loop._active) == 1500


def test_an_attempt_that_waits_for_a_connection_still_ends_at_its_deadline() -> None:
    limits = Limits(per_host_connections=1)
    with hostile.listening_only() as server, running(limits=limits) as egress:
        started = time.monotonic()
        egress.send([build_attempt(server.url(), timeout=TIMEOUT, key=n) for n in range(3)])
        outcomes = gather(egress, 3)
        seconds = time.monotonic() - started
    assert [o.kind for o in outcomes if isinstance(o, Errored)] == [ErrorKind.TIMEOUT] * 3
    assert sorted(o.may_have_been_sent for o in outcomes if isinstance(o, Errored)) == [False, False, True]
    assert seconds <= MAX_SECONDS

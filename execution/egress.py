"""Thousands of HTTP attempts at once, in one background thread around libcurl's multi interface.

Knows nothing of databases or statuses: attempts go in through `send`, outcomes come out of `collect`.
What is judged here, and when: every address that a name resolves to, before any is dialled; the very
address of each socket, as it is opened; the peer, before the request is written to it.

A request is written at most once. libcurl would quietly repeat one on a fresh connection when a kept
one dies without an answer; that is refused here, because only the caller knows whether to repeat.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import resource
import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Final

import certifi
import pycurl  # type: ignore[import-untyped]

from .addresses import AddressPolicy, Answer, Lookup, Resolver, system_lookup
from .outcome import Attempt, Errored, ErrorKind, Outcome, Responded, Timings
from .urls import BadHeader, BadUrl, Target, header_line, parse_target

log = logging.getLogger(__name__)

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

_SWEEP_SECONDS: Final = 0.1  # how late the deadline of an attempt that still waits may be noticed
_PACE_SECONDS: Final = 0.02
_STRAIN: Final = 4
_FORGETTING: Final = 1.02  # per tick: what was usual a minute ago need not be so now
_CHUNK: Final = 256  # attempts that are taken in at once, so that a burst holds up nothing that is under way
_LEAST_SECONDS: Final = 0.005  # with less time left, a request could be sent but hardly be answered
_OVERDUE_SECONDS: Final = 0.25  # after its deadline a transfer ends, even should libcurl have forgotten it
_FIRST_WINDOW: Final = 64
_MAX_ADDRESSES: Final = 8  # of one name that are dialled in turn; all are judged
_BIG_BODY: Final = 16_384
_MANY_HOSTS: Final = 4096
_SPARE_TRANSFERS: Final = 1024
_SPARE_DESCRIPTORS: Final = 128

_INTERNAL: Final = "An internal error in the egress ended this attempt; its log has the cause."
_NO_DESCRIPTORS: Final = (
    "This process has no file descriptor left for a connection: raise its limit (ulimit -n)."
)
_STOPPED: Final = "The service was stopped before this attempt was done."


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what one attempt, one host and one egress may take. Sizes in bytes."""

    request_body: int = 1_000_000
    response_headers: int = 64 * 1024  # over all header blocks of a response, 1xx included
    response_body: int = 10 * 1024 * 1024  # beyond it the attempt ends as TooLarge
    keep_body: int = 64 * 1024
    # Less than in_flight, so that one host that hangs cannot take every place.
    per_host_connections: int = 5_000
    in_flight: int = 10_000
    dns_timeout: float = 5.0
    dns_keep_seconds: float = 30.0
    dns_threads: int = 32
    # Shorter than most servers' own limit: a connection that both ends drop at once costs an attempt.
    idle_connection_seconds: int = 4


class EgressClosed(RuntimeError):
    """send() before start() or after close()."""


class _Refused(Exception):
    """An attempt that cannot be started, with its kind."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Egress:
    """The thread-safe face of the loop. Make it anywhere; `start()` it after the last fork."""

    def __init__(
        self,
        policy: AddressPolicy,
        limits: Limits = Limits(),
        *,
        lookup: Lookup = system_lookup,
        ca_file: str | None = None,
    ) -> None:
        self._settings = _Settings(policy, limits, lookup, ca_file)
        self._changed = threading.Condition()
        self._outcomes: list[Outcome] = []
        self._in_flight = 0
        self._woken = False
        self._loop: _Loop | None = None
        self._thread: threading.Thread | None = None

    @property
    def in_flight(self) -> int:
        """Sent and not yet collected."""
        return self._in_flight

    def start(self) -> None:
        if self._thread is not None:
            raise RuntimeError("this egress was started before; make a new one")
        self._loop = _Loop(self._settings, self._publish)
        self._thread = threading.Thread(target=self._loop.run, name="egress", daemon=True)
        self._thread.start()

    def send(self, attempts: Iterable[Attempt]) -> None:
        """Takes the attempts and returns at once.

        Their deadlines count from now: what is sent beyond `Limits.in_flight` waits for a place at its own
        cost, so keep `in_flight` below that.
        """
        batch = list(attempts)
        with self._changed:
            if self._loop is None:
                raise EgressClosed("the egress is not running: start() it, and send nothing after close()")
            self._in_flight += len(batch)
            now = monotonic()
            for start in range(0, len(batch), _CHUNK):
                self._loop.submit((now, batch[start : start + _CHUNK]))

    def collect(self, timeout: float) -> list[Outcome]:
        """All outcomes that have arrived; waits up to `timeout` seconds for the first, or for wake()."""
        with self._changed:
            if not self._outcomes:
                self._changed.wait_for(lambda: self._outcomes or self._woken, timeout)
            self._woken = False
            outcomes, self._outcomes = self._outcomes, []
            self._in_flight -= len(outcomes)
            return outcomes

    def wake(self) -> None:
        """Makes the collect() that waits, or else the next one, return."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self, grace: float = 0) -> None:
        """Takes no more; what is not done after `grace` seconds ends as Interrupted and can be collected."""
        with self._changed:
            loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        loop.stop(grace)
        self._thread.join(grace + 10)
        if self._thread.is_alive():
            log.error("the egress thread did not end in time; it ends with the process")

    def _publish(self, outcomes: list[Outcome]) -> None:
        with self._changed:
            self._outcomes += outcomes
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class _Settings:
    policy: AddressPolicy
    limits: Limits
    lookup: Lookup
    ca_file: str | None

    def trusted(self) -> str:
        """The system's CA bundle, or certifi's where the system has none: libcurl's wheel knows neither."""
        return self.ca_file or ssl.get_default_verify_paths().cafile or certifi.where()


class _Ticket:
    """An attempt on its way, parsed and waiting for its transfer."""

    __slots__ = ("attempt", "deadline", "dns_seconds", "lines", "sent_at", "target")

    def __init__(self, attempt: Attempt, target: Target, lines: list[str | bytes], sent_at: float) -> None:
        self.attempt = attempt
        self.target = target
        self.lines = lines
        self.sent_at = sent_at
        self.deadline = sent_at + attempt.timeout_seconds
        self.dns_seconds = 0.0


def _parse(attempt: Attempt, sent_at: float, limits: Limits) -> _Ticket:
    if attempt.method not in METHODS:
        raise _Refused(
            ErrorKind.EGRESS, f"method {attempt.method[:20]!r} is not one of {', '.join(sorted(METHODS))}"
        )
    if attempt.body is not None and len(attempt.body) > limits.request_body:
        raise _Refused(ErrorKind.TOO_LARGE, f"the request body is larger than {limits.request_body} bytes")
    try:
        target = parse_target(attempt.url)
        return _Ticket(attempt, target, _header_lines(attempt), sent_at)
    except (BadUrl, BadHeader) as error:
        raise _Refused(ErrorKind.EGRESS, f"The request cannot be sent: {error}.") from None


def _header_lines(attempt: Attempt) -> list[str | bytes]:
    """The caller's headers and orders to libcurl to add none of its own."""
    lines = [header_line(name, value) for name, value in attempt.headers]
    given = {name.lower() for name, _ in attempt.headers}
    if attempt.body is not None and "content-type" not in given:
        lines.append("Content-Type:")
    if "accept" not in given:
        lines.append("Accept:")
    lines.append("Expect:")
    return lines


class _Host:
    """One origin: its addresses, its queue, and how many connections it deserves.

    A burst of thousands to a fast host is served best over few connections that are used again; a host
    that takes long needs one per call. So a window opens small and doubles for as long as calls wait and
    fewer than half a window are answered per tick, unless answers take far longer than they did at first:
    then the host is at its limit, and more connections would only make it slower.
    """

    __slots__ = (
        "_latest",
        "_usual",
        "active",
        "addresses",
        "asked_at",
        "finished",
        "fresh_until",
        "queue",
        "refusal",
        "target",
        "window",
    )

    def __init__(self, target: Target) -> None:
        self.target = target
        self.addresses: tuple[str, ...] = ()
        self.fresh_until = 0.0
        self.refusal: str | None = None
        self.asked_at: float | None = None
        self.queue: deque[_Ticket] = deque()
        self.active = 0
        self._reset_pace()

    @property
    def is_idle(self) -> bool:
        return not (self.active or self.queue or self.asked_at)

    def learn(self, addresses: tuple[str, ...], policy: AddressPolicy, fresh_until: float) -> None:
        """Judges every address: one that is refused refuses the host, whatever the others are."""
        self.addresses = addresses
        self.fresh_until = fresh_until
        rules = (policy.judge(ip, self.target.port) for ip in addresses)
        self.refusal = next((_refusal(self.target, rule) for rule in rules if rule), None)

    def hear(self, now: float) -> None:
        """Notes that the lookup has ended, and what it cost those that waited for it."""
        for ticket in self.queue:
            ticket.dns_seconds = now - max(ticket.sent_at, self.asked_at or now)
        self.asked_at = None

    def resolve_entry(self) -> list[str]:
        """What CURLOPT_RESOLVE is given, so that libcurl never looks a name up by itself."""
        if self.target.is_literal:
            return []
        bracketed = (f"[{ip}]" if ":" in ip else ip for ip in self.addresses[:_MAX_ADDRESSES])
        return [f"+{self.target.host}:{self.target.port}:{','.join(bracketed)}"]

    def _reset_pace(self) -> None:
        self.window = _FIRST_WINDOW
        self.finished = 0
        self._usual = math.inf
        self._latest = 0.0

    def finish_one(self, seconds: float) -> None:
        self.active -= 1
        self.finished += 1
        self._latest = seconds
        if seconds < self._usual:
            self._usual = seconds
        if not (self.active or self.queue):
            self._reset_pace()

    def pace(self, limit: int) -> None:
        is_strained = self.finished and self._latest > _STRAIN * self._usual
        if self.finished < self.window // 2 and not is_strained:
            self.window = min(limit, self.window * 2)
        self.finished = 0
        self._usual *= _FORGETTING

    def take_expired(self, now: float, dns_timeout: float) -> list[tuple[_Ticket, ErrorKind, str]]:
        """Removes from the queue what may wait no longer."""
        expired: list[tuple[_Ticket, ErrorKind, str]] = []
        kept: deque[_Ticket] = deque()
        for ticket in self.queue:
            if ticket.deadline <= now:
                expired.append((ticket, *_timeout(ticket, self._waiting_for())))
            elif self.asked_at and max(ticket.sent_at, self.asked_at) + dns_timeout <= now:
                message = f"Looking up {self.target.host} gave no answer within {dns_timeout:g} s."
                expired.append((ticket, ErrorKind.DNS, message))
            else:
                kept.append(ticket)
        self.queue = kept
        return expired

    def _waiting_for(self) -> str:
        return "looking up its address" if self.asked_at else "waiting for a free connection"


class _Transfer:
    """One easy handle, configured once and used again and again; its callbacks are its own methods."""

    __slots__ = (
        "_body",
        "_body_size",
        "_header_size",
        "_lending",
        "_limits",
        "_lines",
        "_policy",
        "_stopped",
        "curl",
        "host",
        "sent",
        "started_at",
        "ticket",
    )

    def __init__(self, settings: _Settings) -> None:
        self._limits = settings.limits
        self._policy = settings.policy
        self.ticket: _Ticket
        self.host: _Host
        self._clear()
        self.curl = curl = pycurl.Curl()
        curl.transfer = self
        for option, value in self._options(settings):
            curl.setopt(option, value)

    def _options(self, settings: _Settings) -> list[tuple[int, Any]]:
        return [
            (pycurl.NOSIGNAL, 1),
            (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
            (pycurl.PROXY, ""),
            (pycurl.NETRC, pycurl.NETRC_IGNORED),
            (pycurl.FOLLOWLOCATION, 0),
            (pycurl.PATH_AS_IS, 1),
            (pycurl.USERAGENT, ""),
            (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
            (pycurl.HTTP09_ALLOWED, 0),
            (pycurl.SSL_VERIFYPEER, 1),
            (pycurl.SSL_VERIFYHOST, 2),
            (pycurl.CAINFO, settings.trusted()),
            (pycurl.MAXAGE_CONN, settings.limits.idle_connection_seconds),
            (pycurl.HEADERFUNCTION, self._on_header),
            (pycurl.WRITEFUNCTION, self._on_body),
            (pycurl.OPENSOCKETFUNCTION, self._on_open),
            (pycurl.SOCKOPTFUNCTION, self._on_opened),
            (pycurl.PREREQFUNCTION, self._on_ready),
        ]

    def _clear(self) -> None:
        self._lines: list[bytes] = []
        self._header_size = 0
        self._body: list[bytes] = []
        self._body_size = 0
        self._lending = False
        self._stopped: tuple[ErrorKind, str] | None = None
        self.sent = False

    def begin(self, ticket: _Ticket, host: _Host, now: float) -> None:
        self._clear()
        self.ticket = ticket
        self.host = host
        self.started_at = now
        setopt = self.curl.setopt
        setopt(pycurl.URL, ticket.target.url)
        setopt(pycurl.HTTPHEADER, ticket.lines)
        setopt(pycurl.TIMEOUT_MS, max(1, int((ticket.deadline - now) * 1000)))
        setopt(pycurl.RESOLVE, host.resolve_entry())
        self._set_method(ticket.attempt.method, ticket.attempt.body)

    def _set_method(self, method: str, body: bytes | None) -> None:
        setopt = self.curl.setopt
        if body is None and method in ("POST", "PUT", "PATCH"):
            body = b""  # these announce a length even when there is nothing to send
        setopt(pycurl.HTTPGET, 1)
        if body is not None:
            setopt(pycurl.POST, 1)
            setopt(pycurl.POSTFIELDS, body)
        elif method == "HEAD":
            setopt(pycurl.NOBODY, 1)
        setopt(pycurl.CUSTOMREQUEST, method)

    def forget(self) -> None:
        """Keeps a pooled handle from holding on to what its last attempt was about."""
        body = self.ticket.attempt.body
        if body is not None and len(body) > _BIG_BODY:
            self.curl.setopt(pycurl.POSTFIELDS, b"")
        self._clear()
        del self.ticket, self.host

    # libcurl calls these. An exception that left one would come out of the multi handle's call, where it
    # could not be told to which transfer it belongs.

    def _on_open(self, _purpose: int, address: Any) -> Any:
        try:
            return self._open(address)
        except OSError as error:
            self._stopped = (ErrorKind.CONNECT, _explain_socket_error(error))
        except Exception:  # noqa: BLE001 - logged there
            self._blunder()
        return pycurl.SOCKET_BAD

    def _open(self, address: Any) -> Any:
        if self._stopped:  # one of the host's addresses was refused: no other is tried
            return pycurl.SOCKET_BAD
        ip, port = address.addr[:2]
        if rule := self._policy.judge(ip, port):
            self._stopped = (ErrorKind.EGRESS, _refusal(self.ticket.target, rule))
            return pycurl.SOCKET_BAD
        self._lending = True
        return _Lent(socket.socket(address.family, address.socktype, address.protocol))

    def _on_opened(self, fd: int, _purpose: int) -> int:
        self._lending = False
        os.set_inheritable(fd, False)  # pycurl's duplicate would live on in child processes
        return int(pycurl.SOCKOPT_OK)

    def _on_ready(self, peer_ip: str, _local_ip: str, peer_port: int, _local_port: int) -> int:
        try:
            self._check_peer(peer_ip, peer_port)
        except Exception:  # noqa: BLE001 - logged there
            self._blunder()
        if self._stopped:
            return int(pycurl.PREREQFUNC_ABORT)
        self.sent = True
        return int(pycurl.PREREQFUNC_OK)

    def _check_peer(self, ip: str, port: int) -> None:
        if self.sent:
            message = f"{self.ticket.target.authority} closed a kept connection without an answer."
            self._stopped = (ErrorKind.PROTOCOL, message)
        elif rule := self._policy.judge(ip, port):
            self._stopped = (ErrorKind.EGRESS, _refusal(self.ticket.target, rule))

    def _blunder(self) -> None:
        log.exception("egress: a callback failed")  # noqa: LOG004 - called while one is handled
        self._stopped = (ErrorKind.PROTOCOL, _INTERNAL)

    def _on_header(self, line: bytes) -> int | None:
        self._header_size += len(line)
        if self._header_size > self._limits.response_headers:
            limit = self._limits.response_headers
            self._stopped = (ErrorKind.TOO_LARGE, f"The response headers are larger than {limit} bytes.")
            return -1
        self._lines.append(line)
        return None

    def _on_body(self, chunk: bytes) -> int | None:
        wanted = self._limits.keep_body - self._body_size
        self._body_size += len(chunk)
        if self._body_size > self._limits.response_body:
            limit = self._limits.response_body
            self._stopped = (ErrorKind.TOO_LARGE, f"The response body is larger than {limit} bytes.")
            return -1
        if wanted > 0:
            self._body.append(chunk[:wanted])
        return None

    def succeed(self, now: float) -> Outcome:
        headers = _parse_headers(self._lines)
        if headers is None:  # libcurl lets a connection that closes inside the headers pass as a response
            message = f"{self.ticket.target.authority} closed the connection inside the response headers."
            return self.interrupt(ErrorKind.PROTOCOL, message, now)
        return Responded(
            self.ticket.attempt.key,
            self.curl.getinfo(pycurl.RESPONSE_CODE),
            headers,
            b"".join(self._body),
            self._body_size,
            self.timings(now),
        )

    def fail(self, code: int, reason: str, now: float) -> Outcome:
        reason = _plain(reason)
        kind, message = self._stopped or self._explain(code, reason)
        details = {"phase": self.phase(), "curl_code": code, "reason": reason}
        return Errored(self.ticket.attempt.key, kind, message, details, self.timings(now), self.sent)

    def interrupt(self, kind: ErrorKind, message: str, now: float) -> Outcome:
        details = {"phase": self.phase()}
        return Errored(self.ticket.attempt.key, kind, message, details, self.timings(now), self.sent)

    def _explain(self, code: int, reason: str) -> tuple[ErrorKind, str]:
        if code == pycurl.E_OPERATION_TIMEDOUT:
            return _timeout(self.ticket, self.phase())
        if self._lending:  # a socket was given, and pycurl could not duplicate it
            return ErrorKind.CONNECT, _NO_DESCRIPTORS
        kind, text = _ERRORS.get(code, _NOT_HTTP)
        if kind is ErrorKind.PROTOCOL and not self.sent:  # it broke before HTTP had begun
            kind = ErrorKind.TLS if self.ticket.target.scheme == "https" else ErrorKind.CONNECT
        if code == pycurl.E_COULDNT_CONNECT and (number := self.curl.getinfo(pycurl.OS_ERRNO)):
            reason = os.strerror(number)
        return kind, text.format(self.ticket.target.authority, reason)

    def phase(self) -> str:
        if self._lines:
            return "receiving the response"
        if self.sent:
            return "waiting for the response"
        if self.curl.getinfo(pycurl.CONNECT_TIME):
            return "in the TLS handshake"
        return "connecting"

    def timings(self, now: float) -> Timings:
        info = self.curl.getinfo
        lookup, connect = info(pycurl.NAMELOOKUP_TIME), info(pycurl.CONNECT_TIME)
        tls, first_byte = info(pycurl.APPCONNECT_TIME), info(pycurl.STARTTRANSFER_TIME)
        waited = self.started_at - self.ticket.sent_at
        return Timings(
            self.ticket.dns_seconds * 1000,
            max(0.0, connect - lookup) * 1000,
            max(0.0, tls - connect) * 1000,
            (waited + first_byte) * 1000 if first_byte else 0.0,
            (now - self.ticket.sent_at) * 1000,
        )


class _Lent:
    """A socket that pycurl duplicates as soon as it gets it; ours is closed with this object."""

    def __init__(self, original: socket.socket) -> None:
        self._original = original

    def fileno(self) -> int:
        return self._original.fileno()

    def __del__(self) -> None:
        self._original.close()


def _plain(reason: str) -> str:
    """libcurl's words, which may quote the server's."""
    return "".join(letter if letter.isprintable() else "?" for letter in reason[:200])


_NOT_HTTP: Final = (ErrorKind.PROTOCOL, "{0} did not answer as HTTP should: {1}.")
_TLS: Final = "The TLS handshake with {0} failed: {1}."
_ERRORS: Final[dict[int, tuple[ErrorKind, str]]] = {
    pycurl.E_COULDNT_RESOLVE_HOST: (ErrorKind.DNS, "The name of {0} could not be resolved."),
    pycurl.E_COULDNT_CONNECT: (ErrorKind.CONNECT, "Could not connect to {0}: {1}."),
    pycurl.E_SSL_CONNECT_ERROR: (ErrorKind.TLS, _TLS),
    pycurl.E_PEER_FAILED_VERIFICATION: (ErrorKind.TLS, "The certificate of {0} was not accepted: {1}."),
    pycurl.E_SSL_CERTPROBLEM: (ErrorKind.TLS, _TLS),
    pycurl.E_SSL_CIPHER: (ErrorKind.TLS, _TLS),
    pycurl.E_SSL_CACERT_BADFILE: (ErrorKind.TLS, "The CA bundle of this service cannot be read: {1}."),
    pycurl.E_SSL_ISSUER_ERROR: (ErrorKind.TLS, _TLS),
    pycurl.E_SSL_INVALIDCERTSTATUS: (ErrorKind.TLS, _TLS),
    pycurl.E_GOT_NOTHING: (ErrorKind.PROTOCOL, "{0} closed the connection without an answer."),
    pycurl.E_SEND_ERROR: (ErrorKind.PROTOCOL, "The connection to {0} broke while the request was sent."),
    pycurl.E_RECV_ERROR: (
        ErrorKind.PROTOCOL,
        "The connection to {0} broke before the response was complete.",
    ),
    pycurl.E_PARTIAL_FILE: (
        ErrorKind.PROTOCOL,
        "{0} closed the connection before the response was complete.",
    ),
    100: (
        ErrorKind.TOO_LARGE,
        "The response headers of {0} are too large.",
    ),  # CURLE_TOO_LARGE, unnamed in pycurl
}


def _refusal(target: Target, rule: str) -> str:
    """Without the address: what internal names resolve to is nothing that a tenant should learn here."""
    return f"{target.authority} leads to an address that may not be called: {rule}."


def _timeout(ticket: _Ticket, phase: str) -> tuple[ErrorKind, str]:
    seconds = f"{ticket.attempt.timeout_seconds:g}"
    message = (
        f"{ticket.target.authority} gave no complete response within {seconds} s; the time ran out {phase}."
    )
    return ErrorKind.TIMEOUT, message


def _explain_socket_error(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return _NO_DESCRIPTORS
    return f"No socket could be opened: {os.strerror(error.errno or 0)}."


def _parse_headers(lines: list[bytes]) -> tuple[tuple[str, str], ...] | None:
    """The fields of the last header block: earlier ones are 1xx, and what follows its end are trailers.

    None when that block has no end.
    """
    fields: list[tuple[str, str]] = []
    ended = False
    for line in lines:
        if line.startswith(b"HTTP/"):
            fields, ended = [], False
        elif not line.strip():
            ended = True
        elif not ended:
            name, _, value = line.decode("latin-1").partition(":")
            fields.append((name.strip(), value.strip()))
    return tuple(fields) if ended else None


class _Multi:
    """libcurl's multi handle and the epoll set that watches its sockets.

    `CurlMulti.select` goes through select(), which ends at descriptor 1,023; and perform() looks at every
    transfer on every call, where socket_action() looks at those that something happened to.
    """

    def __init__(self, bell: int, connections: int) -> None:
        self._bell = bell
        self._timer: float | None = None
        self._masks: dict[int, int] = {}
        self._poller = select.epoll()
        self._poller.register(bell, select.EPOLLIN)
        self._handle = pycurl.CurlMulti()
        self._handle.setopt(pycurl.M_SOCKETFUNCTION, self._on_socket)
        self._handle.setopt(pycurl.M_TIMERFUNCTION, self._on_timer)
        # Kept connections count too: at the bound the oldest idle one makes room.
        self._handle.setopt(pycurl.M_MAXCONNECTS, connections)
        self._handle.setopt(pycurl.M_MAX_TOTAL_CONNECTIONS, connections)
        self.add = self._handle.add_handle
        self.remove = self._handle.remove_handle

    def _on_socket(self, what: int, fd: int, _multi: object, _data: object) -> None:
        mask = _EPOLL_MASKS.get(what, 0)
        try:
            if not mask:
                if self._masks.pop(fd, None):
                    self._poller.unregister(fd)
            elif fd in self._masks:
                self._poller.modify(fd, mask)
                self._masks[fd] = mask
            else:
                self._poller.register(fd, mask)
                self._masks[fd] = mask
        except OSError:
            log.exception("egress: socket %d cannot be watched; its attempt ends at its deadline", fd)

    def _on_timer(self, milliseconds: int) -> None:
        self._timer = None if milliseconds < 0 else monotonic() + milliseconds / 1000

    @property
    def timer(self) -> float | None:
        """When libcurl wants to be called though nothing happened."""
        return self._timer

    def poll(self, patience: float | None) -> None:
        """Waits for something to happen and lets libcurl act on it."""
        for fd, mask in self._poller.poll(patience):
            if fd == self._bell:
                os.eventfd_read(fd)
            else:
                self._handle.socket_action(fd, _curl_mask(mask))
        if self._timer is not None and monotonic() >= self._timer:
            self._timer = None
            self._handle.socket_action(pycurl.SOCKET_TIMEOUT, 0)

    def finished(self) -> Iterator[tuple[Any, int, str]]:
        """Handle, libcurl's result code and its words for it."""
        more = 1
        while more:
            try:
                more, succeeded, failed = self._handle.info_read()
            except (
                UnicodeError
            ):  # words quoted from a server; its transfer ends as overdue, and no other does
                log.warning("egress: an error message of libcurl could not be decoded")
                return
            for curl in succeeded:
                yield curl, 0, ""
            yield from failed

    def close(self) -> None:
        with suppress(pycurl.error):  # closed before: starting over failed half-way
            self._handle.close()
        self._poller.close()


_EPOLL_MASKS: Final = {
    pycurl.POLL_IN: select.EPOLLIN,
    pycurl.POLL_OUT: select.EPOLLOUT,
    pycurl.POLL_INOUT: select.EPOLLIN | select.EPOLLOUT,
}


def _curl_mask(mask: int) -> int:
    flags = 0
    if mask & (select.EPOLLIN | select.EPOLLHUP):
        flags |= pycurl.CSELECT_IN
    if mask & select.EPOLLOUT:
        flags |= pycurl.CSELECT_OUT
    if mask & select.EPOLLERR:
        flags |= pycurl.CSELECT_ERR
    return flags


def _capacity(limits: Limits) -> int:
    """Connections at once: no more than the process has descriptors for, beside those of the rest of it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits.in_flight
    return max(1, min(limits.in_flight, max(soft // 2, soft - _SPARE_DESCRIPTORS)))


class _Bell:
    """Wakes the loop from other threads; silent once closed, for lookups may outlive the loop."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._open = True

    def ring(self) -> None:
        with self._lock:
            if self._open:
                os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        with self._lock:
            self._open = False
            os.close(self.fd)


class _Loop:
    """All that is in progress, and the thread that alone touches it.

    An attempt goes: inbox → its host's queue (until the host's addresses are known and judged, and there
    is a place) → a transfer → an outcome.
    """

    def __init__(self, settings: _Settings, publish: Callable[[list[Outcome]], None]) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._publish = publish
        self._capacity = _capacity(settings.limits)
        self._inbox: deque[tuple[float, list[Attempt]] | Answer] = deque()
        self._bell = _Bell()
        self._resolver = Resolver(settings.lookup, settings.limits.dns_threads, self.submit)
        self._hosts: dict[tuple[str, str, int], _Host] = {}
        self._prune_at = _MANY_HOSTS
        self._asked: dict[str, list[_Host]] = {}
        self._ready: set[_Host] = set()
        self._active: set[_Transfer] = set()
        self._spare: list[_Transfer] = []
        self._done: list[Outcome] = []
        self._unfinished = 0
        self._ends_at: float | None = None
        self._next_sweep = self._next_pace = 0.0
        self._next_overdue = math.inf
        self._quiet_at: float | None = None
        self._multi = _Multi(self._bell.fd, self._capacity)

    # What other threads may call.

    def submit(self, item: tuple[float, list[Attempt]] | Answer) -> None:
        self._inbox.append(item)
        self._bell.ring()

    def stop(self, grace: float) -> None:
        self._ends_at = monotonic() + grace
        self._bell.ring()

    # The thread.

    def run(self) -> None:
        while not self._is_over():
            try:
                self._step()
            except Exception:
                log.exception("egress: a step of the loop failed; what was under way ends, the loop goes on")
                self._recover()
            self._deliver()
        self._end()

    def _is_over(self) -> bool:
        if self._ends_at is None:
            return False
        return monotonic() >= self._ends_at or not (self._unfinished or self._inbox)

    def _step(self) -> None:
        self._multi.poll(self._patience())
        now = monotonic()
        self._harvest(now)
        if self._inbox:
            self._admit(self._inbox.popleft(), now)
        if self._ready or self._asked:
            self._tend(now)
        if now >= self._next_overdue:
            self._end_overdue(now)
        self._drop_quiet_connections(now)

    def _patience(self) -> float | None:
        """Seconds until there is something to do without being told; None for never."""
        if self._inbox:
            return 0.0
        given = (self._multi.timer, self._ends_at, self._quiet_at)
        moments = [moment for moment in given if moment is not None]
        if self._active:
            moments.append(self._next_overdue)
        if self._ready:
            moments.append(self._next_pace)
        if self._ready or self._asked:
            moments.append(self._next_sweep)
        return max(0.0, min(moments) - monotonic()) if moments else None

    def _deliver(self) -> None:
        if self._done:
            outcomes, self._done = self._done, []
            self._unfinished -= len(outcomes)
            self._publish(outcomes)

    # From the inbox to a host's queue.

    def _admit(self, item: tuple[float, list[Attempt]] | Answer, now: float) -> None:
        if isinstance(item, Answer):
            self._hear(item, now)
            return
        sent_at, attempts = item
        self._unfinished += len(attempts)
        for attempt in attempts:
            try:
                self._enqueue(_parse(attempt, sent_at, self._limits), now)
            except _Refused as refused:
                self._done.append(_never_sent(attempt.key, refused.kind, str(refused), now - sent_at))
            except Exception:
                log.exception("egress: an attempt could not be prepared")
                self._done.append(_never_sent(attempt.key, ErrorKind.PROTOCOL, _INTERNAL, now - sent_at))

    def _enqueue(self, ticket: _Ticket, now: float) -> None:
        host = self._host(ticket.target)
        host.queue.append(ticket)
        if host.fresh_until > now:
            self._ready.add(host)
        else:
            self._look_up(host, now)

    def _host(self, target: Target) -> _Host:
        key = (target.scheme, target.host, target.port)
        host = self._hosts.get(key)
        if host is None:
            self._prune_hosts()
            host = self._hosts[key] = _Host(target)
            if target.is_literal:
                host.learn((target.host,), self._settings.policy, math.inf)
        return host

    def _prune_hosts(self) -> None:
        if len(self._hosts) >= self._prune_at:
            self._hosts = {key: host for key, host in self._hosts.items() if not host.is_idle}
            self._prune_at = max(_MANY_HOSTS, 2 * len(self._hosts))

    def _look_up(self, host: _Host, now: float) -> None:
        if host.asked_at is not None:
            return
        host.asked_at = now
        name = host.target.host
        askers = self._asked.setdefault(name, [])
        askers.append(host)
        if len(askers) == 1:
            self._resolver.ask(name)

    def _hear(self, answer: Answer, now: float) -> None:
        for host in self._asked.pop(answer.host, ()):
            host.hear(now)
            if answer.addresses:
                # At least for what waits for this answer, or that would ask again for ever.
                fresh_until = now + max(self._limits.dns_keep_seconds, _PACE_SECONDS)
                host.learn(answer.addresses, self._settings.policy, fresh_until)
                self._ready.add(host)
            else:
                self._fail_queue(host, *_explain_lookup(answer), now)

    # From a host's queue to a transfer.

    def _tend(self, now: float) -> None:
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_SECONDS
            self._sweep(now)
        if now >= self._next_pace:
            self._next_pace = now + _PACE_SECONDS
            for host in self._ready:
                host.pace(self._limits.per_host_connections)
        if len(self._active) < self._capacity:
            for host in list(self._ready):
                self._launch_from(host, now)

    def _launch_from(self, host: _Host, now: float) -> None:
        if host.refusal:
            self._fail_queue(host, ErrorKind.EGRESS, host.refusal, now)
        elif host.fresh_until <= now and host.queue:
            self._ready.discard(host)
            self._look_up(host, now)
            return
        room = min(host.window, self._limits.per_host_connections) - host.active
        room = min(room, self._capacity - len(self._active), len(host.queue))
        for _ in range(room):
            self._launch(host.queue.popleft(), host, now)
        if not host.queue:
            self._ready.discard(host)

    def _launch(self, ticket: _Ticket, host: _Host, now: float) -> None:
        if ticket.deadline - now < _LEAST_SECONDS:
            self._record(ticket, *_timeout(ticket, "waiting for a free connection"), now)
            return
        try:
            transfer = self._spare.pop() if self._spare else _Transfer(self._settings)
            transfer.begin(ticket, host, now)
            self._multi.add(transfer.curl)
        except Exception:
            log.exception("egress: an attempt could not be started")
            self._record(ticket, ErrorKind.PROTOCOL, _INTERNAL, now)
            return
        host.active += 1
        self._active.add(transfer)
        self._next_overdue = min(self._next_overdue, ticket.deadline + _OVERDUE_SECONDS)

    def _sweep(self, now: float) -> None:
        waiting = [*self._ready, *(host for hosts in self._asked.values() for host in hosts)]
        for host in waiting:
            for ticket, kind, message in host.take_expired(now, self._limits.dns_timeout):
                self._record(ticket, kind, message, now)

    def _fail_queue(self, host: _Host, kind: ErrorKind, message: str, now: float) -> None:
        while host.queue:
            self._record(host.queue.popleft(), kind, message, now)

    def _record(self, ticket: _Ticket, kind: ErrorKind, message: str, now: float) -> None:
        self._done.append(_never_sent(ticket.attempt.key, kind, message, now - ticket.sent_at))

    # From a transfer to an outcome.

    def _harvest(self, now: float) -> None:
        for curl, code, reason in self._multi.finished():
            transfer: _Transfer = curl.transfer
            self._multi.remove(curl)
            self._done.append(_outcome(transfer, code, reason, now))
            if code == pycurl.E_COULDNT_CONNECT and not transfer.host.target.is_literal:
                transfer.host.fresh_until = 0.0  # the name may have moved
            self._release(transfer, now)

    def _release(self, transfer: _Transfer, now: float) -> None:
        self._active.discard(transfer)
        transfer.host.finish_one(now - transfer.started_at)
        transfer.forget()
        if len(self._spare) < _SPARE_TRANSFERS:
            self._spare.append(transfer)
        else:
            transfer.curl.close()

    def _end_overdue(self, now: float) -> None:
        """libcurl keeps the deadlines; the promise does not rest on it alone."""
        for transfer in [t for t in self._active if t.ticket.deadline + _OVERDUE_SECONDS <= now]:
            log.warning("egress: an attempt was still under way after its deadline")
            self._active.discard(transfer)
            self._multi.remove(transfer.curl)
            self._done.append(transfer.interrupt(*_timeout(transfer.ticket, transfer.phase()), now))
            transfer.host.finish_one(now - transfer.started_at)
            transfer.curl.close()
        earliest = min((t.ticket.deadline for t in self._active), default=math.inf)
        self._next_overdue = max(earliest + _OVERDUE_SECONDS, now + _SWEEP_SECONDS)

    def _drop_quiet_connections(self, now: float) -> None:
        """Closes kept connections when nothing has been going on: libcurl does so only when it is used."""
        if self._active:
            self._quiet_at = now + self._limits.idle_connection_seconds
        elif self._quiet_at is not None and now >= self._quiet_at:
            self._quiet_at = None
            self._multi.close()
            self._multi = _Multi(self._bell.fd, self._capacity)

    def _recover(self) -> None:
        sleep(_SWEEP_SECONDS)  # whatever is wrong, it must not spin
        try:
            self._abandon(ErrorKind.PROTOCOL, _INTERNAL)
            self._multi = _Multi(self._bell.fd, self._capacity)
        except Exception:
            log.exception("egress: the loop could not start over; it tries again")

    def _abandon(self, kind: ErrorKind, message: str) -> None:
        """Ends every attempt that was taken in, and the multi handle with them."""
        now = monotonic()
        for transfer in self._active:
            self._done.append(transfer.interrupt(kind, message, now))
            with suppress(pycurl.error):
                self._multi.remove(transfer.curl)
        self._active.clear()
        for host in self._hosts.values():
            self._fail_queue(host, kind, message, now)
        self._hosts, self._asked, self._ready = {}, {}, set()
        self._multi.close()

    def _end(self) -> None:
        self._abandon(ErrorKind.INTERRUPTED, _STOPPED)
        now = monotonic()
        for item in self._inbox:
            if not isinstance(item, Answer):
                sent_at, attempts = item
                self._done += [
                    _never_sent(a.key, ErrorKind.INTERRUPTED, _STOPPED, now - sent_at) for a in attempts
                ]
        self._deliver()
        self._resolver.close()
        self._bell.close()


def _outcome(transfer: _Transfer, code: int, reason: str, now: float) -> Outcome:
    try:
        return transfer.fail(code, reason, now) if code else transfer.succeed(now)
    except Exception:
        log.exception("egress: a response could not be read")
        return transfer.interrupt(ErrorKind.PROTOCOL, _INTERNAL, now)


def _never_sent(key: Hashable, kind: ErrorKind, message: str, seconds: float) -> Errored:
    return Errored(
        key, kind, message, {"phase": "before connecting"}, Timings(total_ms=seconds * 1000), False
    )


def _explain_lookup(answer: Answer) -> tuple[ErrorKind, str]:
    error = answer.error
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return ErrorKind.CONNECT, _explain_socket_error(error)
    if isinstance(error, socket.gaierror) or error is None:
        reason = error.strerror if error else "it has no address"
        return ErrorKind.DNS, f"The name {answer.host} could not be resolved: {reason}."
    return ErrorKind.DNS, f"The name {answer.host} could not be looked up ({type(error).__name__})."


__all__ = ["METHODS", "Egress", "EgressClosed", "Limits"]

"""One HTTP attempt over one easy handle of libcurl: what it is told, what it reports, what that means.

What is judged here, and when: the very address of each socket, as it is opened; the peer, before the
request is written to it.

A request is written at most once. libcurl would quietly repeat one on a fresh connection when a kept
one dies without an answer; that is refused here, because only the caller knows whether to repeat.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, Final

import pycurl

from eventservice.kernel.logging import get_logger
from execution.addresses import AddressPolicy
from execution.outcome import METHODS, Attempt, Errored, ErrorKind, Limits, Outcome, Responded, Timings
from execution.url_rules import BadHeader, BadUrl, Origin, format_header_line, parse_target

log = get_logger(__name__)

# These announce a length even when there is nothing to send.
METHODS_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
INTERNAL_ERROR: Final = "An internal error in the egress ended this attempt; its log has the cause."

_BIG_BODY: Final = 16_384
_NO_DESCRIPTORS: Final = (
    "This process has no file descriptor left for a connection: raise its limit (ulimit -n)."
)


class InvalidAttempt(Exception):
    """An attempt that cannot be started, with its kind."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class PreparedAttempt:
    """An attempt on its way, parsed; raises Refused, BadUrl or BadHeader."""

    __slots__ = ("attempt", "deadline", "dns_seconds", "lines", "origin", "sent_at", "url")

    def __init__(self, attempt: Attempt, sent_at: float, limits: Limits) -> None:
        body = attempt.body
        if attempt.method not in METHODS:
            allowed = ", ".join(sorted(METHODS))
            raise InvalidAttempt(ErrorKind.EGRESS, f"method {attempt.method[:20]!r} is not one of {allowed}")
        if body is not None and len(body) > limits.request_body:
            raise InvalidAttempt(
                ErrorKind.TOO_LARGE, f"the request body is larger than {limits.request_body} bytes"
            )
        try:
            self.origin, self.url = parse_target(attempt.url)
            self.lines = [format_header_line(name, value) for name, value in attempt.headers]
        except (BadUrl, BadHeader) as error:
            raise InvalidAttempt(ErrorKind.EGRESS, f"The request cannot be sent: {error}.") from None
        names = tuple([name for name, _ in attempt.headers])
        self.lines += _withheld(names, body is not None or attempt.method in METHODS_WITH_BODY)
        self.attempt = attempt
        self.sent_at = sent_at
        self.deadline = sent_at + attempt.timeout_seconds
        self.dns_seconds = 0.0

    def fail(self, kind: ErrorKind, message: str, now: float) -> Errored:
        """What comes of it when it never gets a transfer."""
        return build_unsent_outcome(self.attempt.key, kind, message, now - self.sent_at)

    def timeout(self, phase: str) -> tuple[ErrorKind, str]:
        seconds = f"{self.attempt.timeout_seconds:g}"
        text = (
            f"{self.origin.authority} gave no complete response within {seconds} s; the time ran out {phase}."
        )
        return ErrorKind.TIMEOUT, text


@lru_cache(maxsize=1024)
def _withheld(names: tuple[str, ...], sends_body: bool) -> list[str]:
    """Orders to libcurl to add no headers of its own to these."""
    given = {name.lower() for name in names}
    lines = ["Expect:"]
    if "accept" not in given:
        lines.append("Accept:")
    if sends_body and "content-type" not in given:
        lines.append("Content-Type:")
    return lines


def build_unsent_outcome(key: Hashable, kind: ErrorKind, message: str, seconds: float) -> Errored:
    details = {"phase": "before connecting"}
    return Errored(key, kind, message, details, Timings(total_ms=seconds * 1000), False)


def describe_refusal(origin: Origin, rule: str) -> str:
    """Without the address: what internal names resolve to is nothing that a tenant should learn here."""
    return f"{origin.authority} leads to an address that may not be called: {rule}."


def describe_socket_error(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return _NO_DESCRIPTORS
    return f"No socket could be opened: {os.strerror(error.errno or 0)}."


class Transfer:
    """One easy handle, configured once and used again and again; its callbacks are its own methods."""

    def __init__(
        self, policy: AddressPolicy, limits: Limits, ca_file: str, on_dial: Callable[[int], None]
    ) -> None:
        self._policy = policy
        self._limits = limits
        self._on_dial = on_dial
        self._shape: tuple[str, bool] | None = None
        self.ticket: PreparedAttempt
        self._clear()
        self.curl = curl = pycurl.Curl()
        self._setopt, self._getinfo = curl.setopt, curl.getinfo  # pycurl is slow to find its own methods
        for option, value in self._options(ca_file):
            curl.setopt(option, value)

    def _options(self, ca_file: str) -> list[tuple[int, Any]]:
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
            (pycurl.CAINFO, ca_file),
            (pycurl.UPLOAD_BUFFERSIZE, 16_384),  # the default of 64 KB is allocated anew for each body
            (pycurl.MAXAGE_CONN, self._limits.idle_connection_seconds),
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
        self._dialled = False
        self._lending = False
        self._stopped: tuple[ErrorKind, str] | None = None
        self.sent = False

    def begin(self, ticket: PreparedAttempt, resolve: list[str] | None, now: float) -> None:
        """Readies the handle. `resolve` is what a name leads to, so that libcurl never looks one up."""
        self.ticket = ticket
        self._started_at = now
        setopt = self._setopt
        setopt(pycurl.URL, ticket.url)
        setopt(pycurl.HTTPHEADER, ticket.lines)
        setopt(pycurl.TIMEOUT_MS, max(1, int((ticket.deadline - now) * 1000)))
        if resolve:
            setopt(pycurl.RESOLVE, resolve)
        method, body = ticket.attempt.method, ticket.attempt.body
        if body is None and method in METHODS_WITH_BODY:
            body = b""
        if self._shape != (method, body is None):
            self._set_method(method, body is not None)
        if body is not None:
            setopt(pycurl.POSTFIELDS, body)

    def _set_method(self, method: str, has_body: bool) -> None:
        self._shape = None
        setopt = self._setopt
        setopt(pycurl.HTTPGET, 1)
        if has_body:
            setopt(pycurl.POST, 1)
        elif method == "HEAD":
            setopt(pycurl.NOBODY, 1)
        setopt(pycurl.CUSTOMREQUEST, method)
        self._shape = (method, not has_body)

    def forget(self) -> None:
        """Keeps a pooled handle from holding on to what its last attempt was about."""
        body = self.ticket.attempt.body
        if body is not None and len(body) > _BIG_BODY:
            self._setopt(pycurl.POSTFIELDS, b"")
        self._clear()
        del self.ticket

    # libcurl calls these. An exception that left one would come out of the multi handle's call, where it
    # could not be told to which transfer it belongs.

    def _on_open(self, _purpose: int, address: Any) -> Any:
        try:
            return self._open(address)
        except OSError as error:
            self._stopped = (ErrorKind.CONNECT, describe_socket_error(error))
        except Exception:  # noqa: BLE001 - logged there
            self._blunder()
        return pycurl.SOCKET_BAD

    def _open(self, address: Any) -> Any:
        if self._stopped:  # one of the host's addresses was refused: no other is tried
            return pycurl.SOCKET_BAD
        ip, port = address.addr[:2]
        if rule := self._policy.find_refusing_rule(ip, port):
            self._stopped = (ErrorKind.EGRESS, describe_refusal(self.ticket.origin, rule))
            return pycurl.SOCKET_BAD
        self._dialled = self._lending = True
        return _Lent(socket.socket(address.family, address.socktype, address.protocol))

    def _on_opened(self, fd: int, _purpose: int) -> int:
        self._lending = False
        self._on_dial(fd)
        os.set_inheritable(fd, False)  # pycurl's duplicate would live on in child processes
        return int(pycurl.SOCKOPT_OK)

    def _on_ready(self, peer_ip: str, _local_ip: str, peer_port: int, _local_port: int) -> int:
        try:
            if self.sent:
                message = f"{self.ticket.origin.authority} closed a kept connection without an answer."
                self._stopped = (ErrorKind.PROTOCOL, message)
            elif rule := self._policy.find_refusing_rule(peer_ip, peer_port):
                self._stopped = (ErrorKind.EGRESS, describe_refusal(self.ticket.origin, rule))
        except Exception:  # noqa: BLE001 - logged there
            self._blunder()
        if self._stopped:
            return _ABORT
        self.sent = True
        return _GO_ON

    def _blunder(self) -> None:
        log.exception("callback_failed", **self.ticket.attempt.log_fields)  # noqa: LOG004 - called while one is handled
        self._stopped = (ErrorKind.PROTOCOL, INTERNAL_ERROR)

    def _on_header(self, line: bytes) -> int | None:
        self._header_size += len(line)
        if self._header_size > self._limits.response_headers:
            return self._stop_at("headers", self._limits.response_headers)
        self._lines.append(line)
        return None

    def _on_body(self, chunk: bytes) -> int | None:
        wanted = self._limits.keep_body - self._body_size
        self._body_size += len(chunk)
        if self._body_size > self._limits.response_body:
            return self._stop_at("body", self._limits.response_body)
        if wanted > 0:
            self._body.append(chunk[:wanted])
        return None

    def _stop_at(self, part: str, limit: int) -> int:
        self._stopped = (ErrorKind.TOO_LARGE, f"The response {part} is larger than {limit} bytes.")
        return -1

    # What came of it.

    def finish(self, code: int, reason: str, now: float) -> Outcome:
        """`code` and `reason` are libcurl's."""
        try:
            return self._fail(code, reason, now) if code else self._succeed(now)
        except Exception:
            log.exception("response_not_read", **self.ticket.attempt.log_fields)
            return self.interrupt(ErrorKind.PROTOCOL, INTERNAL_ERROR, now)

    def _succeed(self, now: float) -> Outcome:
        headers = _parse_headers(b"".join(self._lines))
        if headers is None:  # libcurl lets a connection that closes inside the headers pass as a response
            message = f"{self.ticket.origin.authority} closed the connection inside the response headers."
            return self.interrupt(ErrorKind.PROTOCOL, message, now)
        status = self._getinfo(pycurl.RESPONSE_CODE)
        body = b"".join(self._body)
        return Responded(self.ticket.attempt.key, status, headers, body, self._body_size, self._timings(now))

    def _fail(self, code: int, reason: str, now: float) -> Outcome:
        # libcurl's words may quote the server's.
        reason = "".join(letter if letter.isprintable() else "?" for letter in reason[:200])
        kind, message = self._stopped or self._explain(code, reason)
        return self._errored(
            kind, message, {"phase": self._phase(), "curl_code": code, "reason": reason}, now
        )

    def interrupt(self, kind: ErrorKind, message: str, now: float) -> Errored:
        return self._errored(kind, message, {"phase": self._phase()}, now)

    def overdue(self, now: float) -> Errored:
        return self.interrupt(*self.ticket.timeout(self._phase()), now)

    def _errored(self, kind: ErrorKind, message: str, details: dict[str, Any], now: float) -> Errored:
        return Errored(self.ticket.attempt.key, kind, message, details, self._timings(now), self.sent)

    def _explain(self, code: int, reason: str) -> tuple[ErrorKind, str]:
        if code == pycurl.E_OPERATION_TIMEDOUT:
            return self.ticket.timeout(self._phase())
        if self._lending:  # a socket was given, and pycurl could not duplicate it
            return ErrorKind.CONNECT, _NO_DESCRIPTORS
        kind, text = _ERRORS.get(code, _NOT_HTTP)
        if kind is ErrorKind.CONNECT and self.sent:  # libcurl found the reset only after it had connected
            return ErrorKind.PROTOCOL, _ERRORS[pycurl.E_SEND_ERROR][1].format(self.ticket.origin.authority)
        if kind is ErrorKind.PROTOCOL and not self.sent:  # it broke before HTTP had begun
            kind = ErrorKind.TLS if self.ticket.origin.scheme == "https" else ErrorKind.CONNECT
        if code == pycurl.E_COULDNT_CONNECT and (number := self._getinfo(pycurl.OS_ERRNO)):
            reason = os.strerror(number)
        return kind, text.format(self.ticket.origin.authority, reason)

    def _phase(self) -> str:
        if self._lines:
            return "receiving the response"
        if self.sent:
            return "waiting for the response"
        if self._getinfo(pycurl.CONNECT_TIME):
            return "in the TLS handshake"
        return "connecting"

    def _timings(self, now: float) -> Timings:
        info, sent_at = self._getinfo, self.ticket.sent_at
        connect_ms = tls_ms = 0.0
        if self._dialled:
            connected = info(pycurl.CONNECT_TIME)
            connect_ms = max(0.0, connected - info(pycurl.NAMELOOKUP_TIME)) * 1000
            tls_ms = max(0.0, info(pycurl.APPCONNECT_TIME) - connected) * 1000
        first_byte = info(pycurl.STARTTRANSFER_TIME)
        first_byte_ms = (self._started_at - sent_at + first_byte) * 1000 if first_byte else 0.0
        return Timings(
            self.ticket.dns_seconds * 1000, connect_ms, tls_ms, first_byte_ms, (now - sent_at) * 1000
        )


class _Lent:
    """A socket that pycurl duplicates as soon as it gets it; ours is closed with this object."""

    def __init__(self, original: socket.socket) -> None:
        self._original = original

    def fileno(self) -> int:
        return self._original.fileno()

    def __del__(self) -> None:
        self._original.close()


def _parse_headers(received: bytes) -> tuple[tuple[str, str], ...] | None:
    """The fields of the last header block: earlier ones are 1xx, and what follows its end are trailers.

    None when that block has no end.
    """
    text = received.decode("latin-1")
    start = text.rfind("\nHTTP/") + 1
    end = _BLANK_LINE.search(text, start)
    if end is None:
        return None
    fields = _FIELD.findall(text, start, end.start())
    return tuple([(name.strip(), value.strip()) for name, value in fields])


_BLANK_LINE: Final = re.compile(r"\n\r?\n")
_FIELD: Final = re.compile(r"\n([^:\n]*):([^\n]*)")
_GO_ON: Final = int(pycurl.PREREQFUNC_OK)
_ABORT: Final = int(pycurl.PREREQFUNC_ABORT)
_NOT_HTTP: Final = (ErrorKind.PROTOCOL, "{0} did not answer as HTTP should: {1}.")
_TLS_CODES: Final = (
    pycurl.E_SSL_CONNECT_ERROR, pycurl.E_SSL_CERTPROBLEM, pycurl.E_SSL_CIPHER, pycurl.E_SSL_ISSUER_ERROR,
    pycurl.E_SSL_INVALIDCERTSTATUS,
)  # fmt: skip
_ERRORS: Final[dict[int, tuple[ErrorKind, str]]] = {
    **dict.fromkeys(_TLS_CODES, (ErrorKind.TLS, "The TLS handshake with {0} failed: {1}.")),
    pycurl.E_COULDNT_RESOLVE_HOST: (ErrorKind.DNS, "The name of {0} could not be resolved."),
    pycurl.E_COULDNT_CONNECT: (ErrorKind.CONNECT, "Could not connect to {0}: {1}."),
    pycurl.E_PEER_FAILED_VERIFICATION: (ErrorKind.TLS, "The certificate of {0} was not accepted: {1}."),
    pycurl.E_SSL_CACERT_BADFILE: (ErrorKind.TLS, "The CA bundle of this service cannot be read: {1}."),
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
    # CURLE_TOO_LARGE, which pycurl does not name.
    100: (ErrorKind.TOO_LARGE, "The response headers of {0} are too large."),
}

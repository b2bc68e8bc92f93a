"""One HTTP attempt on one easy handle of libcurl: its options, its callbacks, and the meaning of its results.

The address policy is applied twice here: to the address of each socket when it is opened, and to the peer before the
request is written to it.

A request is written at most once. When a reused connection is closed without a response, libcurl would repeat the request
on a new one. That is prevented here, because only the caller knows whether a request may be repeated. But a kept connection
is checked before the request is written. If it was closed, or something has arrived on it, the request is written to a new
one instead.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Callable, Hashable
from functools import lru_cache
from time import monotonic
from typing import Any, Final

import pycurl

from eventservice.kernel.boot_time import read_boot_time
from eventservice.kernel.logging import get_logger
from execution.addresses import AddressPolicy, name_settings
from execution.connections import ConnectionPool, Connections, KeptConnection, SocketAddress
from execution.outcome import METHODS, Attempt, Errored, ErrorKind, Limits, Outcome, Responded, Timings
from execution.url_rules import BadHeader, BadUrl, Origin, format_header_line, parse_target

log = get_logger(__name__)

# Requests with these methods state the length of their body even if it is empty.
METHODS_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
_EXPIRED: Final = (
    "The attempt was started too late: the timer may have been taken by another deployment since."
)
INTERNAL_ERROR: Final = "An internal error ended this attempt. The log of the service has the details."

_LARGE_BODY_BYTES: Final = 16_384
_COUNTED_BODY_BYTES: Final = 4_096
# A connection is not used at the very end of the time for which its server has promised to keep it.
_KEEP_ALIVE_MARGIN_SECONDS: Final = 0.5
_NO_DESCRIPTORS: Final = (
    "The service has no file descriptors left for connections. Its limit must be raised (ulimit -n)."
)


class InvalidAttempt(Exception):
    """Raised for an attempt that cannot be sent. It has the kind and the message of the outcome."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class PreparedAttempt:
    """An attempt that was validated and translated for libcurl. The constructor raises InvalidAttempt."""

    __slots__ = ("attempt", "deadline", "dns_seconds", "lines", "origin", "sent_at", "url")

    def __init__(self, attempt: Attempt, sent_at: float, limits: Limits) -> None:
        body = attempt.body
        if attempt.method not in METHODS:
            allowed = ", ".join(sorted(METHODS))
            raise InvalidAttempt(
                ErrorKind.EGRESS, f"The method {attempt.method[:20]!r} is not one of {allowed}."
            )
        if body is not None and len(body) > limits.request_body:
            raise InvalidAttempt(
                ErrorKind.TOO_LARGE, f"The request body is larger than {limits.request_body} bytes."
            )
        try:
            self.origin, self.url = parse_target(attempt.url)
            self.lines = [format_header_line(name, value) for name, value in attempt.headers]
        except (BadUrl, BadHeader) as error:
            raise InvalidAttempt(ErrorKind.EGRESS, f"The request cannot be sent: {error}.") from None
        names = tuple([name for name, _ in attempt.headers])
        self.lines += _list_suppressed_headers(names, body is not None or attempt.method in METHODS_WITH_BODY)
        self.attempt = attempt
        self.sent_at = sent_at
        self.deadline = sent_at + attempt.timeout_seconds
        self.dns_seconds = 0.0

    def fail(self, kind: ErrorKind, message: str, now: float) -> Errored:
        """Return the outcome of an attempt that ends before it has a transfer."""
        return build_unsent_outcome(self.attempt.key, kind, message, now - self.sent_at)

    def explain_timeout(self, phase: str) -> tuple[ErrorKind, str]:
        seconds = f"{self.attempt.timeout_seconds:g} s"
        return ErrorKind.TIMEOUT, (
            f"{self.origin.authority} did not send a complete response within {seconds}. "
            f"The attempt timed out {phase}."
        )


@lru_cache(maxsize=1024)
def _list_suppressed_headers(names: tuple[str, ...], sends_body: bool) -> list[str]:
    """Return the lines that keep libcurl from adding headers of its own to the given ones."""
    given = {name.lower() for name in names}
    lines = ["Expect:"]
    if "accept" not in given:
        lines.append("Accept:")
    if sends_body and "content-type" not in given:
        lines.append("Content-Type:")
    return lines


def build_unsent_outcome(key: Hashable, kind: ErrorKind, message: str, seconds: float) -> Errored:
    """Return the outcome of an attempt that ended before a connection was made."""
    details = {"phase": "before connecting"}
    return Errored(key, kind, message, details, Timings(total_ms=seconds * 1000), False)


def refuse_address(origin: Origin, ip: str, rule: str) -> str:
    """Log that an address is refused. Return the message for the tenant.

    Tenants must not learn what internal names resolve to, so only the log has the address and the rule of a name.
    """
    log.warning(
        "address_refused",
        host=origin.host,
        port=origin.port,
        address=ip,
        rule=rule,
        setting=name_settings(ip),
    )
    if origin.is_literal:
        return f"The address of {origin.authority} may not be called: {rule}. The setting {name_settings(ip)} can allow it."
    return f"The address of {origin.authority} may not be called. The log of the service has the details."


def describe_socket_error(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return _NO_DESCRIPTORS
    return f"Could not open a socket: {os.strerror(error.errno or 0)}."


class Transfer:
    """An easy handle of libcurl that is configured once and reused for one attempt after another."""

    def __init__(
        self,
        policy: AddressPolicy,
        limits: Limits,
        ca_file: str,
        connections: Connections,
        on_new_socket: Callable[[int], None],
    ) -> None:
        self._policy = policy
        self._limits = limits
        self._connections = connections
        self._on_new_socket = on_new_socket
        self._connect_to: list[str] = []
        self._is_fresh = self._is_closing = self._counts_upload = False
        self._shape: tuple[str, bool] | None = None
        self.prepared: PreparedAttempt
        self._clear()
        self.curl = curl = pycurl.Curl()
        self._setopt, self._getinfo = curl.setopt, curl.getinfo  # pycurl is slow to find its own methods
        for option, value in self._list_options(ca_file):
            curl.setopt(option, value)

    def _list_options(self, ca_file: str) -> list[tuple[int, Any]]:
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
            (pycurl.UPLOAD_BUFFERSIZE, 16_384),  # the default, 64 KB, would be allocated for each body
            (pycurl.MAXAGE_CONN, self._limits.idle_connection_seconds),
            (pycurl.HEADERFUNCTION, self._on_header),
            (pycurl.WRITEFUNCTION, self._on_body),
            (pycurl.OPENSOCKETFUNCTION, self._on_open_socket),
            (pycurl.SOCKOPTFUNCTION, self._on_socket_options),
            (pycurl.PREREQFUNCTION, self._on_ready),
            (pycurl.XFERINFOFUNCTION, self._on_progress),
        ]

    def _clear(self) -> None:
        self._lines: list[bytes] = []
        self._header_size = 0
        self._body: list[bytes] = []
        self._body_size = 0
        self._new_sockets: list[int] = []
        self._is_lending = False
        self._is_reusing = False
        self._connection: KeptConnection | None = None
        self._unsent_bytes = 0
        self._stopped: tuple[ErrorKind, str] | None = None
        self.needs_new_connection = False
        self._is_complete = False
        self.sent = False

    def begin(self, prepared: PreparedAttempt, pool: ConnectionPool, now: float) -> None:
        """Prepare the handle. `pool` has the kept connections, and the addresses for new ones."""
        self.prepared = prepared
        self._pool = pool
        self._started_at = now
        setopt = self._setopt
        setopt(pycurl.URL, prepared.url)
        setopt(pycurl.HTTPHEADER, prepared.lines)
        setopt(pycurl.TIMEOUT_MS, max(1, int((prepared.deadline - now) * 1000)))
        if self._connect_to is not pool.connect_to:
            setopt(pycurl.CONNECT_TO, pool.connect_to)
            self._connect_to = pool.connect_to
        setopt(pycurl.RESOLVE, pool.resolve)  # always, because libcurl uses the value only once
        method, body = prepared.attempt.method, prepared.attempt.body
        if body is None and method in METHODS_WITH_BODY:
            body = b""
        if self._shape != (method, body is None):
            self._set_method(method, body is not None)
        if body is not None:
            setopt(pycurl.POSTFIELDS, body)
        self._ends_after_headers = method == "HEAD" and body is not None
        may_reuse = pool.allows_reuse(now)
        self._set_reuse(
            must_connect=not may_reuse,
            # A server may ignore such a body, and take it for the next request.
            must_close=not may_reuse or (bool(body) and method not in METHODS_WITH_BODY),
        )
        self._count_upload(len(body) if body else 0)

    def begin_again(self, now: float) -> bool:
        """Prepare the handle to send the same request on a new connection. Return False if no time is left."""
        milliseconds = int((self.prepared.deadline - now) * 1000)
        if milliseconds <= 0:
            return False
        self._clear()
        self._started_at = now
        self._setopt(pycurl.TIMEOUT_MS, milliseconds)
        self._setopt(pycurl.RESOLVE, self._pool.resolve)
        self._set_reuse(must_connect=True, must_close=self._is_closing)
        body = self.prepared.attempt.body
        self._count_upload(len(body) if body else 0)
        return True

    def _set_reuse(self, *, must_connect: bool, must_close: bool) -> None:
        if self._is_fresh != must_connect:
            self._setopt(pycurl.FRESH_CONNECT, must_connect)
            self._is_fresh = must_connect
        if self._is_closing != must_close:
            self._setopt(pycurl.FORBID_REUSE, must_close)
            self._is_closing = must_close

    def _count_upload(self, body_size: int) -> None:
        """Have libcurl report how much of a body it has sent, if the body may not fit into the first packets."""
        is_counting = body_size > _COUNTED_BODY_BYTES
        self._unsent_bytes = body_size if is_counting else 0
        if self._counts_upload != is_counting:
            self._setopt(pycurl.NOPROGRESS, not is_counting)
            self._counts_upload = is_counting

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

    def reset(self) -> None:
        """Release the data of the last attempt, before the handle goes into the pool."""
        body = self.prepared.attempt.body
        if body is not None and len(body) > _LARGE_BODY_BYTES:
            self._setopt(pycurl.POSTFIELDS, b"")
        self._clear()
        del self.prepared, self._pool

    # --- libcurl's callbacks ---
    #
    # An exception must not leave them: it would be raised by the multi handle, without a hint at the transfer.

    def _on_open_socket(self, _purpose: int, address: Any) -> Any:
        try:
            return self._open(address)
        except OSError as error:
            self._stopped = (ErrorKind.CONNECT, describe_socket_error(error))
        except Exception:  # noqa: BLE001 - logged there
            self._note_bug()
        return pycurl.SOCKET_BAD

    def _open(self, address: Any) -> Any:
        if self._stopped:  # one of the addresses was refused, so the others are not tried either
            return pycurl.SOCKET_BAD
        ip, port = address.addr[:2]
        if rule := self._policy.find_refusing_rule(ip, port):
            self._stopped = (ErrorKind.EGRESS, refuse_address(self.prepared.origin, ip, rule))
            return pycurl.SOCKET_BAD
        self._is_lending = True
        return _LentSocket(socket.socket(address.family, address.socktype, address.protocol))

    def _on_socket_options(self, fd: int, _purpose: int) -> int:
        self._is_lending = False
        self._new_sockets.append(fd)
        self._on_new_socket(fd)
        os.set_inheritable(fd, False)  # otherwise child processes inherit pycurl's duplicate
        return int(pycurl.SOCKOPT_OK)

    def _on_ready(self, peer_ip: str, local_ip: str, peer_port: int, local_port: int) -> int:
        try:
            if self.sent:
                message = (
                    f"{self.prepared.origin.authority} closed a reused connection without sending a response."
                )
                self._stopped = (ErrorKind.PROTOCOL, message)
            elif self._has_expired():
                self._stopped = (ErrorKind.EXPIRED, _EXPIRED)
            elif rule := self._policy.find_refusing_rule(peer_ip, peer_port):
                self._stopped = (ErrorKind.EGRESS, refuse_address(self.prepared.origin, peer_ip, rule))
            elif not self._take_connection(SocketAddress(peer_ip, local_ip, peer_port, local_port)):
                self.needs_new_connection = True
        except Exception:  # noqa: BLE001 - logged there
            self._note_bug()
        if self._stopped or self.needs_new_connection:
            return _ABORT
        self.sent = True
        return _PROCEED

    def _has_expired(self) -> bool:
        send_by = self.prepared.attempt.send_by
        return send_by is not None and read_boot_time() > send_by

    def _take_connection(self, address: SocketAddress) -> bool:
        """Record which connection is used. Return False if it is a kept one that must not be used any more."""
        if self._new_sockets:
            self._connection = self._connections.add(address, self._new_sockets, self._pool)
            return True
        kept = self._connections.find(address)
        if kept is None or not kept.is_usable(self._pool, monotonic()):
            return False
        self._connection = kept
        self._is_reusing = True
        return True

    def _on_progress(self, _download_size: int, _downloaded: int, _upload_size: int, uploaded: int) -> None:
        self._unsent_bytes = len(self.prepared.attempt.body or b"") - uploaded

    def _note_bug(self) -> None:
        log.exception("callback_failed", **self.prepared.attempt.log_fields)  # noqa: LOG004 - called while one is handled
        self._stopped = (ErrorKind.PROTOCOL, INTERNAL_ERROR)

    def _on_header(self, line: bytes) -> int | None:
        self._header_size += len(line)
        if self._header_size > self._limits.response_headers:
            limit = self._limits.response_headers
            return self._stop(f"The response headers are larger than {limit} bytes.")
        if self._unsent_bytes and self._connection is not None:
            # The server may not have read the body to its end. It would take the rest for the next request.
            self._connection.spoil()
        self._lines.append(line)
        if self._ends_after_headers and line in _BLANK_LINES and self._has_final_status():
            self._is_complete = True  # libcurl knows this request as a POST, and would wait for a body
            return -1
        return None

    def _has_final_status(self) -> bool:
        status_line = next((line for line in reversed(self._lines) if line.startswith(b"HTTP/")), b"")
        return not status_line.partition(b" ")[2].startswith(b"1")

    def _on_body(self, chunk: bytes) -> int | None:
        wanted = self._limits.keep_body - self._body_size
        self._body_size += len(chunk)
        if self._body_size > self._limits.response_body:
            return self._stop(f"The response body is larger than {self._limits.response_body} bytes.")
        if wanted > 0:
            self._body.append(chunk[:wanted])
        return None

    def _stop(self, message: str) -> int:
        self._stopped = (ErrorKind.TOO_LARGE, message)
        return -1

    # --- outcomes ---

    def finish(self, code: int, reason: str, now: float) -> Outcome:
        """Return the outcome of a transfer that libcurl has ended with this result code and message."""
        if self.needs_new_connection:  # and there was no time left for one
            return self.time_out(now)
        try:
            return self._succeed(now) if not code or self._is_complete else self._fail(code, reason, now)
        except Exception:
            log.exception("response_not_read", **self.prepared.attempt.log_fields)
            return self.interrupt(ErrorKind.PROTOCOL, INTERNAL_ERROR, now)

    def _succeed(self, now: float) -> Outcome:
        headers = _parse_headers(b"".join(self._lines))
        if headers is None:  # libcurl accepts a connection that is closed within the headers as a response
            message = f"{self.prepared.origin.authority} closed the connection before the response headers were complete."
            return self.interrupt(ErrorKind.PROTOCOL, message, now)
        if self._connection is not None:
            self._connection.release(now, self._find_idle_seconds(headers))
        status = self._getinfo(pycurl.RESPONSE_CODE)
        body = b"".join(self._body)
        return Responded(
            self.prepared.attempt.key, status, headers, body, self._body_size, self._measure_timings(now)
        )

    def _find_idle_seconds(self, headers: tuple[tuple[str, str], ...]) -> float:
        """Return how long the connection may be kept: no longer than the server announces (`Keep-Alive: timeout=5`)."""
        seconds = float(self._limits.idle_connection_seconds)
        for name, value in headers:
            if name.lower() == "keep-alive" and (found := _KEEP_ALIVE_TIMEOUT.search(value)):
                seconds = min(seconds, int(found[1]) - _KEEP_ALIVE_MARGIN_SECONDS)
        return seconds

    def _fail(self, code: int, reason: str, now: float) -> Outcome:
        # libcurl's message may quote what the server sent.
        reason = "".join(letter if letter.isprintable() else "?" for letter in reason[:200])
        reason = reason.replace(self._pool.host, self.prepared.origin.host)
        kind, message = self._stopped or self._explain(code, reason)
        if self._is_reusing and self.sent and not self._lines and kind is ErrorKind.PROTOCOL:
            self._pool.suspend_reuse(now)
        return self._build_error(
            kind, message, {"phase": self._describe_phase(), "curl_code": code, "reason": reason}, now
        )

    def interrupt(self, kind: ErrorKind, message: str, now: float) -> Errored:
        return self._build_error(kind, message, {"phase": self._describe_phase()}, now)

    def time_out(self, now: float) -> Errored:
        return self.interrupt(*self.prepared.explain_timeout(self._describe_phase()), now)

    def _build_error(
        self, kind: ErrorKind, message: str, details: dict[str, str | int], now: float
    ) -> Errored:
        return Errored(
            self.prepared.attempt.key, kind, message, details, self._measure_timings(now), self.sent
        )

    def _explain(self, code: int, reason: str) -> tuple[ErrorKind, str]:
        if code == pycurl.E_OPERATION_TIMEDOUT:
            return self.prepared.explain_timeout(self._describe_phase())
        if self._is_lending:  # pycurl could not duplicate the socket that it was given
            return ErrorKind.CONNECT, _NO_DESCRIPTORS
        kind, text = _ERRORS.get(code, _NOT_HTTP)
        if kind is ErrorKind.CONNECT and self.sent:  # libcurl noticed the reset only after it had connected
            return ErrorKind.PROTOCOL, _ERRORS[pycurl.E_SEND_ERROR][1].format(self.prepared.origin.authority)
        if kind is ErrorKind.PROTOCOL and not self.sent:  # the connection was lost before HTTP began
            kind = ErrorKind.TLS if self.prepared.origin.scheme == "https" else ErrorKind.CONNECT
        if code == pycurl.E_COULDNT_CONNECT and (number := self._getinfo(pycurl.OS_ERRNO)):
            reason = os.strerror(number)
        return kind, text.format(self.prepared.origin.authority, reason)

    def _describe_phase(self) -> str:
        if self._lines:
            return "receiving the response"
        if self.sent:
            return "waiting for the response"
        if self._getinfo(pycurl.CONNECT_TIME):
            return "in the TLS handshake"
        return "connecting"

    def _measure_timings(self, now: float) -> Timings:
        info, sent_at = self._getinfo, self.prepared.sent_at
        connect_ms = tls_ms = 0.0
        if self._new_sockets:
            connected = info(pycurl.CONNECT_TIME)
            connect_ms = max(0.0, connected - info(pycurl.NAMELOOKUP_TIME)) * 1000
            tls_ms = max(0.0, info(pycurl.APPCONNECT_TIME) - connected) * 1000
        first_byte = info(pycurl.STARTTRANSFER_TIME)
        first_byte_ms = (self._started_at - sent_at + first_byte) * 1000 if first_byte else 0.0
        return Timings(
            self.prepared.dns_seconds * 1000, connect_ms, tls_ms, first_byte_ms, (now - sent_at) * 1000
        )


class _LentSocket:
    """A socket for pycurl, which duplicates it at once. The original is closed together with this object."""

    def __init__(self, original: socket.socket) -> None:
        self._original = original

    def fileno(self) -> int:
        return self._original.fileno()

    def __del__(self) -> None:
        self._original.close()


def _parse_headers(received: bytes) -> tuple[tuple[str, str], ...] | None:
    """Return the fields of the last header block, or None if it is incomplete.

    Earlier blocks belong to 1xx responses. What follows the last one are trailers, which are ignored.
    """
    text = received.decode("latin-1")
    start = text.rfind("\nHTTP/") + 1
    end = _BLANK_LINE.search(text, start)
    if end is None:
        return None
    fields = _FIELD.findall(text, start, end.start())
    return tuple([(name.strip(), value.strip()) for name, value in fields])


_KEEP_ALIVE_TIMEOUT: Final = re.compile(r"\btimeout\s*=\s*\"?([0-9]{1,6})", re.IGNORECASE)
_BLANK_LINES: Final = (b"\r\n", b"\n")
_BLANK_LINE: Final = re.compile(r"\n\r?\n")
_FIELD: Final = re.compile(r"\n([^:\n]*):([^\n]*)")
_PROCEED: Final = int(pycurl.PREREQFUNC_OK)
_ABORT: Final = int(pycurl.PREREQFUNC_ABORT)
_NOT_HTTP: Final = (ErrorKind.PROTOCOL, "{0} did not send a valid HTTP response: {1}.")
_TLS_CODES: Final = (
    pycurl.E_SSL_CONNECT_ERROR, pycurl.E_SSL_CERTPROBLEM, pycurl.E_SSL_CIPHER, pycurl.E_SSL_ISSUER_ERROR,
    pycurl.E_SSL_INVALIDCERTSTATUS,
)  # fmt: skip
_ERRORS: Final[dict[int, tuple[ErrorKind, str]]] = {
    **dict.fromkeys(_TLS_CODES, (ErrorKind.TLS, "The TLS handshake with {0} failed: {1}.")),
    pycurl.E_COULDNT_RESOLVE_HOST: (ErrorKind.DNS, "The host name of {0} could not be resolved."),
    pycurl.E_COULDNT_CONNECT: (ErrorKind.CONNECT, "Could not connect to {0}: {1}."),
    pycurl.E_PEER_FAILED_VERIFICATION: (
        ErrorKind.TLS,
        "The TLS certificate of {0} could not be verified: {1}.",
    ),
    pycurl.E_SSL_CACERT_BADFILE: (ErrorKind.TLS, "The CA bundle of this service cannot be read: {1}."),
    pycurl.E_GOT_NOTHING: (ErrorKind.PROTOCOL, "{0} closed the connection without sending a response."),
    pycurl.E_SEND_ERROR: (
        ErrorKind.PROTOCOL,
        "The connection to {0} was lost while the request was being sent.",
    ),
    pycurl.E_RECV_ERROR: (
        ErrorKind.PROTOCOL,
        "The connection to {0} was lost before the response was complete.",
    ),
    pycurl.E_PARTIAL_FILE: (
        ErrorKind.PROTOCOL,
        "{0} closed the connection before the response was complete.",
    ),
    # CURLE_TOO_LARGE, which pycurl does not name.
    100: (ErrorKind.TOO_LARGE, "The response headers of {0} are too large."),
}

"""What egress is asked to do, and everything that can come of it: a closed set, meant for `match`.

Named tuples, because a frozen dataclass costs three times as much to make, and each call makes three.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

METHODS: Final = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS")


class ErrorKind(StrEnum):
    """Why there is no success. Egress itself never yields HTTP_STATUS or REJECTED: callers judge responses."""

    TIMEOUT = "Timeout"
    DNS = "Dns"
    CONNECT = "Connect"
    TLS = "Tls"
    PROTOCOL = "Protocol"
    TOO_LARGE = "TooLarge"
    HTTP_STATUS = "HttpStatus"
    REJECTED = "Rejected"
    EGRESS = "Egress"
    INTERRUPTED = "Interrupted"


class Attempt(NamedTuple):
    """One HTTP request to make. `key` is the caller's handle and comes back untouched; of the threads that look
    names up, no `tenant` gets more than its share."""

    key: Hashable
    method: str
    url: str
    headers: Sequence[tuple[str, str]]
    body: bytes | None
    timeout_seconds: float
    tenant: Hashable = None

    @property
    def log_fields(self) -> dict[str, str]:
        """For the log."""
        return {"tenant_id": str(self.tenant), "attempt": str(self.key)}


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
    dns_threads: int = 128  # at most; one tenant's names take a quarter of them
    # Shorter than most servers' own limit: a connection that both ends drop at once costs an attempt.
    idle_connection_seconds: int = 4


class Timings(NamedTuple):
    """Milliseconds. The first three are the lengths of their phases (0 when a connection was reused);
    the last two count from the moment that the attempt was sent to the egress. 0 is what did not happen."""

    dns_ms: float = 0.0
    connect_ms: float = 0.0
    tls_ms: float = 0.0
    first_byte_ms: float = 0.0
    total_ms: float = 0.0

    @property
    def phases(self) -> dict[str, float]:
        """What happened before the end, as it is kept and shown."""
        named = zip(("dnsMs", "connectMs", "tlsMs", "firstByteMs"), self, strict=False)
        return {name: round(length, 1) for name, length in named if length}


class Responded(NamedTuple):
    """A complete HTTP response, of any status: redirects are never followed.

    `body` is cut at `Limits.keep_body`; `body_size` is what was received in full.
    """

    key: Hashable
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    body_size: int
    timings: Timings


class Errored(NamedTuple):
    """No complete response. `may_have_been_sent` is False only when no byte of the request has left."""

    key: Hashable
    kind: ErrorKind
    message: str
    details: Mapping[str, Any]
    timings: Timings
    may_have_been_sent: bool


Outcome = Responded | Errored

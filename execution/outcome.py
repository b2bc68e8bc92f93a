"""An HTTP attempt, and the closed set of its outcomes, meant for `match`.

Named tuples, because creating a frozen dataclass takes three times as long, and each attempt creates three objects.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

METHODS: Final = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS")


class ErrorKind(StrEnum):
    """Why an attempt failed. The egress itself never returns HTTP_STATUS or REJECTED: its callers judge responses."""

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
    MEMORY = "Memory"  # the process had too little memory for the request
    EXPIRED = "Expired"  # the right to make the attempt had ended before the request was sent


class Attempt(NamedTuple):
    """One HTTP request to send. Its outcome has the same `key`.

    Each tenant has a share of the threads for DNS lookups. Kept connections are shared by the attempts of one tenant that
    have the same `credential`. After `send_by`, by the clock of `read_boot_time`, no byte of the request is sent.
    """

    key: Hashable
    method: str
    url: str
    headers: Sequence[tuple[str, str]]
    body: bytes | None
    timeout_seconds: float
    tenant: Hashable = None
    credential: Hashable = None
    send_by: float | None = None

    @property
    def sharers(self) -> Hashable:
        """A value that attempts have in common if they may share connections."""
        return self.tenant, self.credential

    @property
    def log_fields(self) -> dict[str, str]:
        """The fields that identify the attempt in the application log."""
        return {"tenant_id": str(self.tenant), "attempt": str(self.key)}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for one attempt, one destination and the egress as a whole. Sizes are in bytes."""

    request_body: int = 1_000_000
    response_headers: int = 64 * 1024  # of all header blocks of a response, including 1xx
    response_body: int = 10 * 1024 * 1024  # a larger one ends the attempt as TooLarge
    keep_body: int = 64 * 1024
    # Less than in_flight, so that one destination that hangs cannot occupy all connections.
    per_host_connections: int = 5_000
    in_flight: int = 10_000
    dns_timeout: float = 5.0
    dns_keep_seconds: float = 30.0
    dns_threads: int = 128  # a tenant may occupy a quarter of them
    # Shorter than the limit of most servers: an attempt fails if the server closes its connection at that moment.
    idle_connection_seconds: int = 4


class Timings(NamedTuple):
    """How long an attempt took, in milliseconds; 0 for a phase that did not happen.

    The first three are durations of phases (0 if a connection was reused). The last two are counted from the moment when
    the attempt was passed to the egress.
    """

    dns_ms: float = 0.0
    connect_ms: float = 0.0
    tls_ms: float = 0.0
    first_byte_ms: float = 0.0
    total_ms: float = 0.0

    @property
    def phases(self) -> dict[str, float]:
        """The phases before the end, as they are stored and shown."""
        named = zip(("dnsMs", "connectMs", "tlsMs", "firstByteMs"), self, strict=False)
        return {name: round(length, 1) for name, length in named if length}


class Responded(NamedTuple):
    """A complete HTTP response of any status; redirects are not followed.

    `body` is truncated to `Limits.keep_body`; `body_size` is the size of the whole body.
    """

    key: Hashable
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    body_size: int
    timings: Timings


class Errored(NamedTuple):
    """No complete response. `may_have_been_sent` is False only if no byte of the request was sent."""

    key: Hashable
    kind: ErrorKind
    message: str
    details: Mapping[str, str | int]
    timings: Timings
    may_have_been_sent: bool


Outcome = Responded | Errored

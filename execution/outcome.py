"""What egress is asked to do, and everything that can come of it: a closed set, meant for `match`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


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


@dataclass(frozen=True, slots=True)
class Attempt:
    """One HTTP request to make. `key` is the caller's handle and comes back untouched."""

    key: Hashable
    method: str
    url: str
    headers: Sequence[tuple[str, str]]
    body: bytes | None
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds. The first three are the lengths of their phases (0 when a connection was reused);
    the last two count from the moment that the attempt was sent to the egress."""

    dns_ms: float = 0.0
    connect_ms: float = 0.0
    tls_ms: float = 0.0
    first_byte_ms: float = 0.0
    total_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Responded:
    """A complete HTTP response, of any status: redirects are never followed.

    `body` is cut at `Limits.keep_body`; `body_size` is what was received in full.
    """

    key: Hashable
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    body_size: int
    timings: Timings


@dataclass(frozen=True, slots=True)
class Errored:
    """No complete response. `may_have_been_sent` is False only when no byte of the request has left."""

    key: Hashable
    kind: ErrorKind
    message: str
    details: Mapping[str, Any]
    timings: Timings
    may_have_been_sent: bool


Outcome = Responded | Errored

__all__ = ["Attempt", "ErrorKind", "Errored", "Outcome", "Responded", "Timings"]

"""Build the attempt that the egress sends from a stored request: headers, signature, and whether it is allowed."""

from __future__ import annotations

import binascii
import json
import uuid
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from eventservice.kernel.secrets import Undecipherable, decrypt_cached
from eventservice.kernel.signing import build_signature_headers, decode_secret
from execution.outcome import Attempt, Errored, ErrorKind, Timings
from execution.redaction import StoredHeaders, decrypt_headers, mask_query, mask_stored_headers
from execution.url_rules import BadUrl, parse_target


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """The HTTP request of a service call as it is stored, with its secret headers encrypted."""

    method: str
    url: str
    headers: StoredHeaders
    body: Any

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> StoredRequest:
        return cls(spec["method"], spec["url"], spec.get("headers") or {}, spec.get("body"))

    @property
    def masked_headers(self) -> dict[str, str]:
        return mask_stored_headers(self.headers)

    @property
    def masked_url(self) -> str:
        return mask_query(self.url)

    @property
    def body_text(self) -> str | None:
        if self.body is None or isinstance(self.body, str):
            return self.body
        return json.dumps(self.body, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs requests with a tenant's secret. It is decrypted here, so that a bad secret becomes the attempt's outcome."""

    encrypted_secret: str

    def headers(self, message_id: str, now: datetime, body: bytes) -> dict[str, str]:
        return build_signature_headers(
            decode_secret(decrypt_cached(self.encrypted_secret)), message_id, now, body
        )


def build_attempt(
    request: StoredRequest,
    *,
    key: Hashable,
    tenant_id: uuid.UUID,
    service_call_id: uuid.UUID,
    attempt: int,
    timeout_seconds: float,
    signer: Signer | None,
    now: datetime,
    send_by: float | None = None,
) -> Attempt | Errored:
    """Return the attempt to send, or its outcome if it cannot be sent."""
    text = request.body_text
    body = None if text is None else text.encode()
    try:
        own_headers = decrypt_headers(request.headers)
        signature = signer.headers(str(service_call_id), now, body or b"") if signer else {}
    except Undecipherable:
        return _build_refusal(
            key,
            "The request cannot be sent: one of its secrets was encrypted with a key that is not in ENCRYPTION_KEYS.",
        )
    except binascii.Error:
        return _build_refusal(
            key, "The request cannot be signed: the tenant's signing secret is not valid base64."
        )
    # The caller's headers replace these defaults, an Idempotency-Key for example, but not those of the service.
    headers = {
        "Idempotency-Key": str(service_call_id),
        "User-Agent": "EventService/1",
        **_get_default_content_type(request),
        **_normalize_names(own_headers),
        "X-Service-Call-Id": str(service_call_id),
        "X-Attempt": str(attempt),
        **signature,
    }
    lines = tuple(headers.items())
    return Attempt(key, request.method, request.url, lines, body, timeout_seconds, tenant_id, None, send_by)


def check_target(url: str, allowed_hosts: Collection[str], key: Hashable) -> Errored | None:
    """Return the outcome of a request that must not be sent, whatever its host resolves to, or None if it may be."""
    try:
        host = parse_target(url).host
    except BadUrl as error:
        return _build_refusal(key, f"The request cannot be sent: {error}.")
    return (
        None
        if is_allowed_host(host, allowed_hosts)
        else _build_refusal(key, f"The host {host} is not among the tenant's allowed hosts.")
    )


def is_allowed_host(host: str, allowed_hosts: Collection[str]) -> bool:
    """Return whether a tenant that is restricted to these hosts may call the host. No hosts mean no restriction."""
    return not allowed_hosts or host in allowed_hosts


def _build_refusal(key: Hashable, message: str) -> Errored:
    return Errored(key, ErrorKind.EGRESS, message, {}, Timings(), may_have_been_sent=False)


def _get_default_content_type(request: StoredRequest) -> dict[str, str]:
    return (
        {} if request.body is None or isinstance(request.body, str) else {"Content-Type": "application/json"}
    )


def _normalize_names(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with names in one spelling, so that they replace defaults of the same name."""
    return {name.title(): value for name, value in headers.items()}

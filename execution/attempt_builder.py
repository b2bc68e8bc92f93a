"""From a stored request to the attempt that egress makes: whose headers it carries, and where it may go."""

from __future__ import annotations

import binascii
import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from eventservice.kernel.secrets import Undecipherable, decrypt_cached
from eventservice.kernel.signing import build_signature_headers, decode_secret
from execution.outcome import Attempt, Errored, ErrorKind, Timings
from execution.redaction import decrypt_headers, mask_stored_headers
from execution.url_rules import BadUrl, parse_target


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """What a service call asks for, with the secrets still sealed."""

    method: str
    url: str
    headers: Mapping[str, Any]
    body: Any

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> StoredRequest:
        return cls(spec["method"], spec["url"], spec.get("headers") or {}, spec.get("body"))

    @property
    def masked_headers(self) -> dict[str, str]:
        return mask_stored_headers(self.headers)

    @property
    def body_text(self) -> str | None:
        if self.body is None or isinstance(self.body, str):
            return self.body
        return json.dumps(self.body, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Signer:
    """A tenant's secret, which is opened only where it is used: what is wrong with it is the attempt's outcome."""

    sealed: str

    def headers(self, message_id: str, now: datetime, body: bytes) -> dict[str, str]:
        return build_signature_headers(decode_secret(decrypt_cached(self.sealed)), message_id, now, body)


def build_attempt(
    request: StoredRequest,
    *,
    key: Any,
    tenant_id: uuid.UUID,
    service_call_id: uuid.UUID,
    attempt: int,
    timeout_seconds: float,
    signer: Signer | None,
    now: datetime,
) -> Attempt | Errored:
    text = request.body_text
    body = None if text is None else text.encode()
    try:
        own_headers = decrypt_headers(request.headers)
        signature = signer.headers(str(service_call_id), now, body or b"") if signer else {}
    except Undecipherable:
        return _refused(
            key, "A secret of this request was encrypted with a key that is not in ENCRYPTION_KEYS."
        )
    except binascii.Error:
        return _refused(key, "The tenant's signing secret is not base64: nothing can be signed with it.")
    # The caller's own headers come first: an Idempotency-Key of theirs is the one that counts.
    headers = {
        "Idempotency-Key": str(service_call_id),
        "User-Agent": "EventService/1",
        **_content_type(request),
        **_titled(own_headers),
        "X-Service-Call-Id": str(service_call_id),
        "X-Attempt": str(attempt),
        **signature,
    }
    lines = tuple(headers.items())
    return Attempt(key, request.method, request.url, lines, body, timeout_seconds, tenant_id)


def check_target(url: str, allowed_hosts: Collection[str], key: Any) -> Errored | None:
    """Why this request must not be made at all, whatever its host resolves to."""
    try:
        host = parse_target(url).host
    except BadUrl as wrong:
        return _refused(key, str(wrong))
    if allowed_hosts and host not in allowed_hosts:
        return _refused(key, f"The host {host} is not one that this tenant may call.")
    return None


def _refused(key: Any, message: str) -> Errored:
    return Errored(key, ErrorKind.EGRESS, message, {}, Timings(), may_have_been_sent=False)


def _content_type(request: StoredRequest) -> dict[str, str]:
    return (
        {} if request.body is None or isinstance(request.body, str) else {"Content-Type": "application/json"}
    )


def _titled(headers: Mapping[str, str]) -> dict[str, str]:
    """Names in one spelling, so that a caller's header replaces the default of the same name."""
    return {name.title(): value for name, value in headers.items()}

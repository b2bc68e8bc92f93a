"""Keyed hashes of requests, which tell a repeat under the same idempotency key from another request.

A request contains secrets. If its hash had no key, whoever reads the database could try out guesses at them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import uuid
from typing import Final

from eventservice.kernel.secrets import derive_keys

_PREFIX: Final = "v1:"
_PURPOSE: Final = "request fingerprint"


def is_sealed(stored: str) -> bool:
    """Return whether a stored fingerprint is a keyed hash. Earlier versions stored the hash of the content itself."""
    return stored.startswith(_PREFIX)


def seal_fingerprint(tenant_id: uuid.UUID, idempotency_key: str, content_hash: str) -> str:
    """Return the fingerprint to store. It is different for each tenant and key, even if the content is the same."""
    return _seal(derive_keys(_PURPOSE)[0], tenant_id, idempotency_key, content_hash)


def matches_fingerprint(
    stored: str | None, tenant_id: uuid.UUID, idempotency_key: str, content_hash: str
) -> bool:
    """Return whether a fingerprint was stored for the same content, with any of the known keys."""
    if stored is None:
        return False
    if not is_sealed(stored):
        return hmac.compare_digest(stored, content_hash)
    sealed = (_seal(key, tenant_id, idempotency_key, content_hash) for key in derive_keys(_PURPOSE))
    return any(hmac.compare_digest(stored, each) for each in sealed)


def _seal(key: bytes, tenant_id: uuid.UUID, idempotency_key: str, content_hash: str) -> str:
    message = f"{tenant_id}\n{idempotency_key}\n{content_hash}".encode()
    digest = hmac.digest(key, message, hashlib.sha256)
    return _PREFIX + base64.urlsafe_b64encode(digest).decode().rstrip("=")

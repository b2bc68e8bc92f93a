"""Standard Webhooks: an HMAC over id, time and body, which proves to a receiver that a request is ours and recent."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from datetime import datetime

PREFIX = "whsec_"


def generate_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def decode_secret(secret: str) -> bytes:
    """Return the key of a secret, with or without its prefix. Raise binascii.Error if it is not base64."""
    return base64.b64decode(secret.removeprefix(PREFIX))


def build_signature_headers(key: bytes, message_id: str, now: datetime, body: bytes) -> dict[str, str]:
    timestamp = str(int(now.timestamp()))
    digest = hmac.digest(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": "v1," + base64.b64encode(digest).decode(),
    }

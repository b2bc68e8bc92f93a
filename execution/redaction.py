"""Secret header values: encrypted when stored, decrypted only to be sent, masked wherever they are shown."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from eventservice.kernel.secrets import Undecipherable, decrypt, encrypt
from execution.outcome import Outcome, Responded

MASK = "••••••"
# An encrypted value is an object with one member, so that no string of a caller is taken for one.
StoredValue = str | dict[str, str]
StoredHeaders = Mapping[str, StoredValue]
# Names are compared in lower case, with `-` instead of `_`.
SECRET_NAMES = frozenset(
    {
        "authorization", "authentication", "proxy-authorization", "x-auth", "cookie", "set-cookie",
        "apikey", "x-apikey", "token", "password", "secret",
    }
)  # fmt: skip
SECRET_ENDINGS = ("-key", "-token", "-secret", "-password", "-signature")
# Ends like a secret but is none: it must be readable to compare attempts.
PUBLIC_NAMES = frozenset({"idempotency-key"})
# Shorter secrets are not searched for in responses: they could be ordinary words.
MIN_SECRET_LENGTH = 8
# A truncated body may end with the beginning of a secret. Fewer bytes than this are left in place.
MIN_CUT_BYTES = 4


def is_secret_header(name: str, tenant_names: Collection[str] = ()) -> bool:
    """Return whether the header is secret by its name, or because it is one of the tenant's own secret headers."""
    normalized = _normalize(name)
    if normalized in PUBLIC_NAMES:
        return False
    return normalized in SECRET_NAMES or normalized.endswith(SECRET_ENDINGS) or _is_among(name, tenant_names)


def _is_among(name: str, tenant_names: Collection[str]) -> bool:
    normalized = _normalize(name)
    return any(_normalize(secret) == normalized for secret in tenant_names)


def _normalize(name: str) -> str:
    return name.lower().replace("_", "-")


def encrypt_headers(headers: Mapping[str, str], tenant_names: Collection[str]) -> dict[str, StoredValue]:
    """Return the headers as they are stored, with their secret values encrypted."""
    return {
        name: {"encrypted": encrypt(value)} if is_secret_header(name, tenant_names) else value
        for name, value in headers.items()
    }


def decrypt_headers(headers: StoredHeaders) -> dict[str, str]:
    return {
        name: decrypt(value["encrypted"]) if isinstance(value, dict) else value
        for name, value in headers.items()
    }


def reencrypt_headers(headers: StoredHeaders, reencrypt: Callable[[str], str]) -> dict[str, StoredValue]:
    """Return stored headers with each encrypted value replaced by what `reencrypt` makes of it."""
    return {
        name: {"encrypted": reencrypt(value["encrypted"])} if isinstance(value, dict) else value
        for name, value in headers.items()
    }


def mask_headers(headers: Mapping[str, str], tenant_names: Collection[str]) -> dict[str, str]:
    """Return headers that are not encrypted yet as they may be shown."""
    return {name: MASK if is_secret_header(name, tenant_names) else value for name, value in headers.items()}


def mask_url(url: str) -> str:
    """Return a URL without what may be secret: user information and the query."""
    if not url:
        return ""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" + ("?…" if parts.query else "")


def mask_stored_headers(headers: StoredHeaders) -> dict[str, str]:
    """Return stored headers as they may be shown."""
    return {name: MASK if isinstance(value, dict) else value for name, value in headers.items()}


def redact_outcome(outcome: Outcome, tenant_names: Collection[str], sent: StoredHeaders) -> Outcome:
    """Return the outcome as it may be stored.

    It masks the response headers that the tenant calls secret, and every secret of the request that the server echoes in
    headers or body. `sent` has the request's headers as they are stored.
    """
    if not isinstance(outcome, Responded):
        return outcome
    if tenant_names:
        masked = ((n, MASK if _is_among(n, tenant_names) else value) for n, value in outcome.headers)
        outcome = outcome._replace(headers=tuple(masked))
    echoes = _list_echoes(sent)
    if not echoes:
        return outcome
    body, headers = outcome.body, outcome.headers
    if outcome.body_size > len(body):
        body = _mask_truncated(body, echoes)
    for echo in echoes:
        if echo in body:
            body = body.replace(echo, MASK.encode())
        text = echo.decode("latin-1")  # as response headers are decoded
        if any(text in value for _, value in headers):
            headers = tuple((name, value.replace(text, MASK)) for name, value in headers)
    return outcome._replace(body=body, headers=headers)


def _list_echoes(headers: StoredHeaders) -> list[bytes]:
    """Return the forms in which a server may echo the secrets among these stored headers, the longest first."""
    encrypted = {name: value for name, value in headers.items() if isinstance(value, dict)}
    try:
        values = decrypt_headers(encrypted).values()
    except Undecipherable:  # then they were not sent either
        return []
    parts = {part for value in values for part in _split_secret(value) if len(part) >= MIN_SECRET_LENGTH}
    return sorted({form for part in parts for form in _encode_forms(part)}, key=len, reverse=True)


def _split_secret(value: str) -> list[str]:
    """Return what may be echoed alone: `abc` of `Bearer abc`, and the decoded password of `Basic` credentials."""
    scheme, _, credentials = value.partition(" ")
    decoded = _decode_basic(credentials) if scheme.lower() == "basic" else ""
    return [value, *re.split(r"[\s;,=]+", value), decoded, decoded.partition(":")[2]]


def _decode_basic(credentials: str) -> str:
    try:
        raw = base64.b64decode(credentials + "==")  # some clients omit the padding
    except (binascii.Error, ValueError):
        return ""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _encode_forms(text: str) -> set[bytes]:
    """Return the bytes of a text in UTF-8, in Latin-1 as it was sent, and as various JSON encoders escape it."""
    forms = {text.encode()}
    with suppress(UnicodeEncodeError):
        forms.add(text.encode("latin-1"))
    for ascii_only in (True, False):
        escaped = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        forms |= {escaped.encode(), escaped.replace("/", "\\/").encode()}
    return forms


def _mask_truncated(body: bytes, echoes: Collection[bytes]) -> bytes:
    """Mask the beginning of a secret at the end of a truncated body."""
    cut = max((_measure_overlap(body, echo) for echo in echoes), default=0)
    return body[:-cut] + MASK.encode() if cut else body


def _measure_overlap(body: bytes, echo: bytes) -> int:
    """Return how many of the first bytes of `echo` the body ends with."""
    for length in range(min(len(echo) - 1, len(body)), MIN_CUT_BYTES - 1, -1):
        if echo[length - 1] == body[-1] and body.endswith(echo[:length]):
            return length
    return 0


def mask_response_headers(headers: Collection[tuple[str, str]]) -> dict[str, str]:
    """Return the headers of a response for the attempt log. Repeated ones are joined, as HTTP allows."""
    masked: dict[str, str] = {}
    for name, value in headers:
        value = MASK if is_secret_header(name) else value
        masked[name] = f"{masked[name]}, {value}" if name in masked else value
    return masked

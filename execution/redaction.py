"""Secret header values: sealed where they are stored, opened only to be sent, masked wherever they are shown."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from eventservice.kernel.secrets import Undecipherable, decrypt, encrypt
from execution.outcome import Outcome, Responded

MASK = "••••••"
# Names are compared in lower case, with `-` for `_`.
SECRET_NAMES = frozenset(
    {
        "authorization", "authentication", "proxy-authorization", "x-auth", "cookie", "set-cookie",
        "apikey", "x-apikey", "token", "password", "secret",
    }
)  # fmt: skip
SECRET_ENDINGS = ("-key", "-token", "-secret", "-password", "-signature")
# Ends like a secret and is none: it must be readable where attempts are compared.
PUBLIC_NAMES = frozenset({"idempotency-key"})
MIN_SECRET_LENGTH = 8  # characters
MIN_CUT_BYTES = 4  # bytes of a secret that the end of what is kept cuts off


def is_secret_header(name: str, named_by_tenant: Collection[str] = ()) -> bool:
    plain = _plain(name)
    if plain in PUBLIC_NAMES:
        return False
    return plain in SECRET_NAMES or plain.endswith(SECRET_ENDINGS) or _is_named(name, named_by_tenant)


def _is_named(name: str, named_by_tenant: Collection[str]) -> bool:
    plain = _plain(name)
    return any(_plain(named) == plain for named in named_by_tenant)


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def encrypt_headers(headers: Mapping[str, str], named_by_tenant: Collection[str]) -> dict[str, Any]:
    """The headers as they are stored. A sealed value is an object, so that no text can be taken for one."""
    return {
        name: {"encrypted": encrypt(value)} if is_secret_header(name, named_by_tenant) else value
        for name, value in headers.items()
    }


def decrypt_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: decrypt(value["encrypted"]) if isinstance(value, dict) else value
        for name, value in headers.items()
    }


def reencrypt_headers(headers: Mapping[str, Any], renewed: Callable[[str], str]) -> dict[str, Any]:
    """With each sealed value as `renewed` gives it."""
    return {
        name: {"encrypted": renewed(value["encrypted"])} if isinstance(value, dict) else value
        for name, value in headers.items()
    }


def mask_headers(headers: Mapping[str, str], named_by_tenant: Collection[str]) -> dict[str, str]:
    """What a person may see of headers that have not been sealed yet."""
    return {
        name: MASK if is_secret_header(name, named_by_tenant) else value for name, value in headers.items()
    }


def mask_url(url: str) -> str:
    """Return a URL without what may be secret: user information and the query."""
    if not url:
        return ""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" + ("?…" if parts.query else "")


def mask_stored_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    """What a person may see of stored headers."""
    return {name: MASK if isinstance(value, dict) else value for name, value in headers.items()}


def redact_outcome(outcome: Outcome, named_by_tenant: Collection[str], sent: Mapping[str, Any]) -> Outcome:
    """The outcome as it may be stored: without the response headers that the tenant calls secret, and without what
    the server tells back of the secrets that it was sent (`sent`: the request's headers, as they are stored)."""
    if not isinstance(outcome, Responded):
        return outcome
    if named_by_tenant:
        masked = ((n, MASK if _is_named(n, named_by_tenant) else value) for n, value in outcome.headers)
        outcome = outcome._replace(headers=tuple(masked))
    told = _told_back(sent)
    if not told:
        return outcome
    body, headers = outcome.body, outcome.headers
    if outcome.body_size > len(body):
        body = _without_cut(body, told)
    for form in told:
        if form in body:
            body = body.replace(form, MASK.encode())
        text = form.decode("latin-1")  # as headers are read
        if any(text in value for _, value in headers):
            headers = tuple((name, value.replace(text, MASK)) for name, value in headers)
    return outcome._replace(body=body, headers=headers)


def _told_back(headers: Mapping[str, Any]) -> list[bytes]:
    """The secrets as a server may tell them back, the longest first; none so short that it is a word."""
    sealed = {name: value for name, value in headers.items() if isinstance(value, dict)}
    try:
        values = decrypt_headers(sealed).values()
    except Undecipherable:  # then it was not sent either
        return []
    parts = {part for value in values for part in _parts(value) if len(part) >= MIN_SECRET_LENGTH}
    return sorted({form for part in parts for form in _forms(part)}, key=len, reverse=True)


def _parts(value: str) -> list[str]:
    """A server may tell back `abc` of `Bearer abc`, and what the base64 of `Basic` stands for."""
    scheme, _, credentials = value.partition(" ")
    decoded = _decoded(credentials) if scheme.lower() == "basic" else ""
    return [value, *re.split(r"[\s;,=]+", value), decoded, decoded.partition(":")[2]]


def _decoded(credentials: str) -> str:
    try:
        raw = base64.b64decode(credentials + "==")  # some leave the padding out
    except (binascii.Error, ValueError):
        return ""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _forms(text: str) -> set[bytes]:
    """The bytes that it may have: in UTF-8, as it was sent, and within a JSON text of this writer or that."""
    forms = {text.encode()}
    with suppress(UnicodeEncodeError):
        forms.add(text.encode("latin-1"))
    for ascii_only in (True, False):
        escaped = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        forms |= {escaped.encode(), escaped.replace("/", "\\/").encode()}
    return forms


def _without_cut(body: bytes, told: Collection[bytes]) -> bytes:
    """Without the beginning of a secret that the limit of what is kept has cut off."""
    cut = max((_overlap(body, form) for form in told), default=0)
    return body[:-cut] + MASK.encode() if cut else body


def _overlap(body: bytes, form: bytes) -> int:
    """How much of the form's beginning the body ends with."""
    for length in range(min(len(form) - 1, len(body)), MIN_CUT_BYTES - 1, -1):
        if form[length - 1] == body[-1] and body.endswith(form[:length]):
            return length
    return 0


def mask_response_headers(headers: Collection[tuple[str, str]]) -> dict[str, str]:
    """A response's headers for the log; repeated ones are joined, as HTTP allows."""
    shown: dict[str, str] = {}
    for name, value in headers:
        value = MASK if is_secret_header(name) else value
        shown[name] = f"{shown[name]}, {value}" if name in shown else value
    return shown

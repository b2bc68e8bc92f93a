"""Secret values of headers and URLs: encrypted when stored, decrypted only to be sent, masked wherever they are shown.

Of a URL, only what is shown and logged is masked: the request itself is stored as it is.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from urllib.parse import quote, unquote_plus, urlsplit

from eventservice.kernel.secrets import Undecipherable, decrypt, encrypt
from execution.outcome import Errored, Outcome

MASK = "••••••"
# An encrypted value is an object with one member, so that no string of a caller is taken for one.
StoredValue = str | dict[str, str]
StoredHeaders = Mapping[str, StoredValue]
# A tenant that names this as a secret header has all of them masked, except those that tell nothing about it.
ALL_HEADERS = "*"
# Names are compared in lower case, word by word. A name is secret if one of its words is.
SECRET_WORDS = frozenset(
    {
        "apikey", "assertion", "auth", "authentication", "authorisation", "authorization", "basic", "bearer", "cookie", "cookies",
        "cred", "credential", "credentials", "creds", "csrf", "dpop", "hmac", "jwe", "jws", "jwt", "login", "mfa", "oauth",
        "otp", "pass", "passcode", "passphrase", "passwd", "password", "pin", "pwd", "saml", "secret", "secrets", "session",
        "sessionid", "sid", "sig", "signature", "sso", "ticket", "token", "tokens", "totp", "xsrf",
    }
)  # fmt: skip
# Words that make a name secret if it ends with them: X-Key-Id is an identifier, and X-Key a key.
SECRET_LAST_WORDS = frozenset({"api", "key", "keys", "license", "licence"})
# Parts that make a name secret even if nothing separates them from the rest, as in `accesstoken`.
_SECRET_PART = re.compile(
    r"accesskey|apikey|assertion|authkey|authori[sz]ation|authtoken|bearer|cookie|credential|jwt|masterkey|oauth|passphrase"
    r"|passw|privatekey|secret|sessionid|signature|signingkey|subscriptionkey|token|userpass"
)
# Names that look secret but are not: they must be readable to compare attempts, or say how much of a limit is left.
PUBLIC_NAMES = frozenset(
    {
        "authentication-info", "cross-origin-embedder-policy", "idempotency-key", "proxy-authenticate", "sec-websocket-key",
        "signature-input", "surrogate-key", "www-authenticate", "x-idempotency-key",
    }
)  # fmt: skip
_PUBLIC_PREFIXES = ("access-control-", "ratelimit-", "x-ratelimit-")
# What remains readable although a tenant has asked for all headers to be masked: the form of the message, not its content.
MESSAGE_NAMES = frozenset(
    {
        "accept", "accept-encoding", "accept-language", "cache-control", "connection", "content-encoding", "content-length",
        "content-type", "date", "keep-alive", "retry-after", "transfer-encoding", "user-agent", "vary",
    }
)  # fmt: skip
# Shorter secrets are not searched for in responses: they could be ordinary words.
MIN_SECRET_LENGTH = 8
# A truncated body may end with the beginning of a secret. Fewer bytes than this are left in place.
MIN_CUT_BYTES = 4


def is_secret_header(name: str, tenant_names: Collection[str] = ()) -> bool:
    """Return whether the header is secret by its name, or because it is one of the tenant's own secret headers."""
    return is_secret_name(name) or (bool(tenant_names) and _is_among(name, tenant_names))


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether a header or query parameter of this name usually has a secret value."""
    normalized = _normalize(name)
    spellings = (normalized, "-".join(_WORD.findall(name.replace("_", "-"))).lower())
    if not PUBLIC_NAMES.isdisjoint(spellings) or normalized.startswith(_PUBLIC_PREFIXES):
        return False
    if _SECRET_PART.search(normalized.replace("-", "")):
        return True
    return any(
        words[-1] in SECRET_LAST_WORDS or not SECRET_WORDS.isdisjoint(words)
        for words in (spelling.split("-") for spelling in spellings)
    )


def _is_among(name: str, tenant_names: Collection[str]) -> bool:
    normalized = _normalize(name)
    if any(_normalize(secret) == normalized for secret in tenant_names):
        return True
    return ALL_HEADERS in tenant_names and normalized not in MESSAGE_NAMES and normalized not in PUBLIC_NAMES


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


def reencrypt_headers(
    headers: StoredHeaders, tenant_names: Collection[str], reencrypt: Callable[[str], str]
) -> dict[str, StoredValue]:
    """Return stored headers with each encrypted value replaced by what `reencrypt` makes of it.

    Values that were stored before their names were known to be secret are encrypted.
    """
    plain = {name: value for name, value in headers.items() if isinstance(value, str)}
    return {
        name: {"encrypted": reencrypt(value["encrypted"])} if isinstance(value, dict) else value
        for name, value in {**headers, **encrypt_headers(plain, tenant_names)}.items()
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


def mask_query(url: str) -> str:
    """Return a URL with the values of those parameters masked whose names are secret, in its query or fragment."""
    return _PARAMETER.sub(_mask_parameter, url) if "=" in url else url


def _mask_parameter(match: re.Match[str]) -> str:
    start, name, value = match.groups()
    return f"{start}{name}={MASK}" if value and is_secret_name(unquote_plus(name)) else match[0]


def list_query_secrets(url: str) -> list[str]:
    """Return the values that `mask_query` masks, as they are in the URL and decoded."""
    found = _PARAMETER.findall(url) if "=" in url else []
    values = [value for _, name, value in found if value and is_secret_name(unquote_plus(name))]
    return [*values, *map(unquote_plus, values)]


def mask_stored_headers(headers: StoredHeaders) -> dict[str, str]:
    """Return stored headers as they may be shown. Some may have been stored before their names were known to be secret."""
    return {
        name: MASK if isinstance(value, dict) or is_secret_name(name) else value
        for name, value in headers.items()
    }


def redact_outcome(
    outcome: Outcome, tenant_names: Collection[str], sent: StoredHeaders, url: str = ""
) -> Outcome:
    """Return the outcome as it may be stored.

    It masks the response headers that the tenant calls secret, and every secret of the request that the server echoes in
    headers, body or an error message. `sent` has the request's headers as they are stored, `url` its URL.
    """
    if isinstance(outcome, Errored):
        return _redact_error(outcome, sent, url)
    if tenant_names:
        masked = ((n, MASK if _is_among(n, tenant_names) else value) for n, value in outcome.headers)
        outcome = outcome._replace(headers=tuple(masked))
    echoes = _list_echoes(sent, url)
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


def _redact_error(outcome: Errored, sent: StoredHeaders, url: str) -> Errored:
    """Mask what a message quotes: libcurl's own messages have parts of a response, which may be truncated."""
    echoes = _list_echoes(sent, url) if "reason" in outcome.details else []
    if not echoes:
        return outcome

    reason = masked = str(outcome.details["reason"])
    for echo in echoes:
        masked = masked.replace(echo.decode("latin-1"), MASK)
    masked = _mask_truncated(masked.encode(), echoes).decode(errors="replace")
    message = outcome.message.replace(reason, masked)
    return outcome._replace(message=message, details={**outcome.details, "reason": masked})


def _list_echoes(headers: StoredHeaders, url: str) -> list[bytes]:
    """Return the forms in which a server may echo the secrets of a request, the longest first."""
    encrypted = {name: value for name, value in headers.items() if isinstance(value, dict)}
    try:
        values = [*decrypt_headers(encrypted).values(), *list_query_secrets(url)]
    except Undecipherable:  # then they were not sent either
        return []
    parts = {part for value in values for part in _split_secret(value) if len(part) >= MIN_SECRET_LENGTH}
    forms = {form for part in parts for form in _encode_forms(part)}
    return sorted(forms, key=len, reverse=True)


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
    """Return the bytes of a text as it was sent, and as JSON, URLs, HTML and base64 contain it."""
    forms = {text.encode()}
    with suppress(UnicodeEncodeError):
        forms.add(text.encode("latin-1"))
    if _CREDENTIALS.fullmatch(text):
        return forms  # all other forms contain those of the token, which is a part of its own
    forms.update(_encode_base64(text.encode()))
    if _PLAIN.fullmatch(text):
        return forms  # all other forms of it are the same
    for ascii_only in (True, False):
        escaped = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        forms |= {escaped.encode(), escaped.replace("/", "\\/").encode()}
    for safe in _URL_SAFE:
        quoted = quote(text, safe=safe)
        for form in (quoted, quoted.replace("%20", "+")):
            forms |= {form.encode(), _ESCAPED_BYTE.sub(lambda byte: byte[0].lower(), form).encode()}
    for table in _HTML_ESCAPES:
        forms.add(text.translate(table).encode())
    return forms


def _encode_base64(secret: bytes) -> Iterator[bytes]:
    """Yield what the base64 of any text that contains the secret has in common, for both alphabets.

    It depends on the position of the secret in the text. The characters at both ends encode other bits, too.
    """
    for shift in range(3):
        encoded = base64.b64encode(bytes(shift) + secret).rstrip(b"=")
        inner = encoded[(shift * 8 + 5) // 6 : (shift + len(secret)) * 8 // 6]
        if len(inner) >= MIN_SECRET_LENGTH:
            yield inner
            if b"+" in inner or b"/" in inner:
                yield inner.translate(_URL_ALPHABET)


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
        if is_secret_name(name):
            value = MASK
        elif name.lower() in _URL_HEADERS:
            value = mask_query(value)
        masked[name] = f"{masked[name]}, {value}" if name in masked else value
    return masked


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^A-Z-]+|[A-Z]")  # of a name such as X-Access-Token or accessToken
_PARAMETER = re.compile(r"([?&;#])([^=&;?#]*)=([^&;#]*)")
_PLAIN = re.compile(r"[A-Za-z0-9_.-]*")
_CREDENTIALS = re.compile(rf"[A-Za-z]+ [A-Za-z0-9_.-]{{{MIN_SECRET_LENGTH},}}")  # a scheme and a plain token
_URL_HEADERS = ("location", "content-location", "refresh")
_ESCAPED_BYTE = re.compile(r"%[0-9A-F]{2}")
_URL_ALPHABET = bytes.maketrans(b"+/", b"-_")
# The characters that encoders leave as they are: all of them escaped, as in a path, encodeURIComponent and encodeURI.
_URL_SAFE = ("", "/", "!'()*~", "!'()*~;,/?:@&=+$#")
_HTML_ESCAPES = [
    str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': quotation, "'": apostrophe})
    for quotation in ('"', "&quot;", "&#34;")
    for apostrophe in ("'", "&#39;", "&#x27;", "&#039;", "&apos;")
]

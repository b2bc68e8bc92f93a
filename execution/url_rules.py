"""Parse URLs, and validate the headers that callers supply.

If two parsers read the same URL differently, the address policy may check one host while the connection goes to another.
So nothing else parses the URLs of calls, and libcurl gets a URL that is rebuilt from the parsed parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, Literal, NamedTuple

MAX_URL_LENGTH: Final = 2048
MAX_HOST_LENGTH: Final = 253
MAX_PORT: Final = 65_535
MAX_HEADERS: Final = 64
MAX_HEADER_BYTES: Final = 16_384

Scheme = Literal["http", "https"]
_DEFAULT_PORTS: Final[dict[str, int]] = {"http": 80, "https": 443}

_VISIBLE = re.compile(r"[\x21-\x5b\x5d-\x7e]*")  # printable ASCII without the space and the backslash
_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^#]*)(?:#.*)?")  # scheme, authority, rest
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# The WHATWG rule "ends in a number": inet_aton() would read such a host as an address in some notation.
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_HOST_WITH_PORT = re.compile(r"(\[[^\]]*\]|[^:\[\]]+):([1-9][0-9]{0,4})")
_PORT = re.compile(r"[1-9][0-9]{0,4}")

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

_SERVICE_HEADERS = frozenset(
    {"x-service-call-id", "x-attempt", "webhook-id", "webhook-timestamp", "webhook-signature"}
)
# Framing, routing and hop-by-hop headers: they decide where a message ends and who reads it.
_TRANSPORT_HEADERS = frozenset(
    {
        "host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "upgrade", "trailer",
        "expect",
    }
)  # fmt: skip


class BadUrl(ValueError):
    """Raised for a URL that may not be called. The message names the rule that it breaks."""


class BadHeader(ValueError):
    """Raised for a header that may not be sent. The message names the header and the rule that it breaks."""


class Origin(NamedTuple):
    """Scheme, host and port. `host` is in lower case, and an IPv6 address without brackets."""

    scheme: Scheme
    host: str
    port: int
    is_literal: bool
    authority: str


class TargetUrl(NamedTuple):
    """A parsed URL. `url` is rebuilt from the parts, without the fragment."""

    origin: Origin
    url: str

    @property
    def host(self) -> str:
        return self.origin.host


def parse_target(url: str) -> TargetUrl:
    """Parse the URL of a call. Raise BadUrl."""
    if len(url) > MAX_URL_LENGTH:
        raise BadUrl(f"the URL is longer than {MAX_URL_LENGTH} characters")
    if not _VISIBLE.fullmatch(url):
        raise BadUrl(
            "the URL contains a space, control character, backslash or non-ASCII character, which must be percent-encoded, or in "
            "the name of a host be written as xn--…"
        )
    parts = _PARTS.fullmatch(url)
    if parts is None:
        raise BadUrl("the URL does not have the form http://host/path")
    scheme, authority, rest = parts.groups()
    origin = _parse_origin(scheme, authority)
    slash = "" if rest.startswith("/") else "/"
    return TargetUrl(origin, f"{origin.scheme}://{origin.authority}{slash}{rest}")


def find_origin(url: str, host: str) -> Origin | None:
    """Return the origin of a stored URL, whose query may be masked.

    Return None if the URL does not keep today's rules, or is not one of the host: it may have been stored under others.
    """
    parts = _PARTS.fullmatch(url)
    try:
        origin = _parse_origin(parts[1], parts[2]) if parts else None
    except BadUrl:
        return None
    return origin if origin is not None and origin.host == host else None


@lru_cache(maxsize=4096)
def _parse_origin(scheme: str, authority: str) -> Origin:
    name = _parse_scheme(scheme)
    if "@" in authority:
        raise BadUrl("the URL contains a user name or password")
    host, port = _split_port(authority)
    if host.startswith("["):
        host = _parse_ipv6(host)
        return _build_origin(name, host, _parse_port(port, name), True, f"[{host}]")
    host = host.lower()
    is_literal = _check_host(host)
    return _build_origin(name, host, _parse_port(port, name), is_literal, host)


def _build_origin(scheme: Scheme, host: str, port: int, is_literal: bool, authority: str) -> Origin:
    if port != _DEFAULT_PORTS[scheme]:
        authority = f"{authority}:{port}"
    return Origin(scheme, host, port, is_literal, authority)


def parse_host(text: str) -> str:
    """Return a host in the form of `TargetUrl.host`. Raise BadUrl. An IPv6 address may have brackets or not."""
    if ":" in text:
        return _parse_ipv6(text if text.startswith("[") and text.endswith("]") else f"[{text}]")
    host = text.lower()
    _check_host(host)
    return host


def split_port(text: str) -> tuple[str, int | None]:
    """Return the host, in lower case and without brackets, and the port of "host", "host:port" or "[IPv6]:port"."""
    found = _HOST_WITH_PORT.fullmatch(text)
    host, port = (found[1], int(found[2])) if found else (text, None)
    return host.lower().removeprefix("[").removesuffix("]"), port


def build_port_pattern(port: int) -> str:
    """Return the regular expression of the URLs with this port, for any database. Their case does not matter."""
    host = r"(\[[^\]]*\]|[^/?#:]*)"
    authorities = [f"https?://{host}:{port}"]
    authorities += [f"{scheme}://{host}" for scheme, default in _DEFAULT_PORTS.items() if default == port]
    return f"^({'|'.join(authorities)})([/?#]|$)"


def _parse_scheme(scheme: str) -> Scheme:
    match scheme.lower():
        case "http":
            return "http"
        case "https":
            return "https"
        case _:
            raise BadUrl("the URL's scheme is not http or https")


def _split_port(authority: str) -> tuple[str, str | None]:
    if authority.startswith("["):
        host, bracket, tail = authority.partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise BadUrl(
                "the brackets of the URL's IPv6 address are not closed, or not followed by a port or path"
            )
        return host + bracket, tail[1:] if tail else None
    host, colon, port = authority.partition(":")
    return host, port if colon else None


def _parse_port(port: str | None, scheme: Scheme) -> int:
    if port is None:
        return _DEFAULT_PORTS[scheme]
    if not _PORT.fullmatch(port) or int(port) > MAX_PORT:
        raise BadUrl(f"the URL's port is not a number from 1 to {MAX_PORT}")
    return int(port)


def _parse_ipv6(bracketed: str) -> str:
    text = bracketed[1:-1]
    if "%" in text:
        raise BadUrl("the URL's IPv6 address has a zone id")
    try:
        return str(IPv6Address(text))
    except AddressValueError:
        raise BadUrl("the URL's host is not a valid IPv6 address") from None


def _check_host(host: str) -> bool:
    """Return True for an IPv4 address and False for a name. Raise BadUrl if it is neither, or ambiguous."""
    if not host:
        raise BadUrl("the URL has no host")
    if len(host) > MAX_HOST_LENGTH:
        raise BadUrl(f"the URL's host is longer than {MAX_HOST_LENGTH} characters")
    labels = host.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise BadUrl(
            "the URL's host is not a valid name: labels of up to 63 letters, digits, hyphens and underscores, joined by dots"
        )
    if not _NUMERIC_LABEL.fullmatch(labels[-1]):
        return False
    if not _is_dotted_quad(host):
        raise BadUrl(
            "the URL's host ends in a number but is not an IPv4 address in the usual notation, such as 192.0.2.1"
        )
    return True


def _is_dotted_quad(host: str) -> bool:
    try:
        return str(IPv4Address(host)) == host
    except AddressValueError:
        return False


def check_headers(headers: Iterable[tuple[str, str]]) -> None:
    """Raise BadHeader if a caller may not submit these headers."""
    count = size = 0
    for name, value in headers:
        count += 1
        size += len(name) + len(value) + 4
        _check_name(name)
        _check_value(name, value)
    if count > MAX_HEADERS:
        raise BadHeader(f"there are more than {MAX_HEADERS} headers")
    if size > MAX_HEADER_BYTES:
        raise BadHeader(f"the headers are larger than {MAX_HEADER_BYTES} bytes in total")


def _check_name(name: str) -> None:
    _require_token(name)
    lowered = name.lower()
    if lowered in _TRANSPORT_HEADERS or lowered.startswith("proxy-"):
        raise BadHeader(f"header {name} is set by the HTTP client and cannot be overridden")
    if lowered in _SERVICE_HEADERS:
        raise BadHeader(f"header {name} is set by this service and cannot be overridden")


def _check_value(name: str, value: str) -> None:
    if not _FIELD_VALUE.fullmatch(value):
        raise BadHeader(
            f"the value of header {name} contains a line break, a control character or a character outside Latin-1"
        )


def format_header_line(name: str, value: str) -> str | bytes:
    """Return the header line for libcurl. Raise BadHeader, because libcurl itself would even send a line break."""
    _require_token(name)
    if value.isascii() and value.isprintable() and value.strip():
        return f"{name}: {value}"
    _check_value(name, value)
    if not value or value.isspace():
        return f"{name};"  # libcurl would omit the header if it were given "Name:"
    return f"{name}: {value}".encode("latin-1")


def _require_token(name: str) -> None:
    if not is_header_name(name):
        raise BadHeader(f"{name[:80]!r} is not a valid header name")


@lru_cache(maxsize=1024)
def is_header_name(name: str) -> bool:
    """Return whether this is a token of RFC 9110, and so can be the name of a header."""
    return _TOKEN.fullmatch(name) is not None

"""The one reading of a URL, and of caller-supplied headers.

Two parsers that read one string differently are how a judge is made to look at one host while the
dialler goes to another. So nothing else here parses URLs, and what libcurl gets is put together
again from the parts that were parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, Literal, NamedTuple

MAX_URL_LENGTH: Final = 2048
MAX_HOST_LENGTH: Final = 253
MAX_HEADERS: Final = 64
MAX_HEADER_BYTES: Final = 16_384

Scheme = Literal["http", "https"]
_DEFAULT_PORTS: Final[dict[str, int]] = {"http": 80, "https": 443}

_VISIBLE = re.compile(r"[\x21-\x5b\x5d-\x7e]*")  # printable ASCII without the space and the backslash
_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^#]*)(?:#.*)?")  # scheme, authority, rest
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# WHATWG's "ends in a number": inet_aton() would read such a host as an address, in some notation.
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

_OURS = frozenset({"x-service-call-id", "x-attempt", "webhook-id", "webhook-timestamp", "webhook-signature"})
# Framing, routing and hop-by-hop headers: whoever sets these decides where a message ends or who reads it.
_HOP = frozenset(
    {
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "te",
        "upgrade",
        "trailer",
        "expect",
    }
)


class BadUrl(ValueError):
    """The message names the rule that the URL breaks."""


class BadHeader(ValueError):
    """The message names the header and the rule that it breaks."""


class Origin(NamedTuple):
    """Where connections lead. `host` is lower case, an IPv6 address without its brackets."""

    scheme: Scheme
    host: str
    port: int
    is_literal: bool
    authority: str


class Target(NamedTuple):
    """A URL as it is dialled: put together again from its parts, without the fragment."""

    origin: Origin
    url: str

    @property
    def host(self) -> str:
        return self.origin.host


def parse_target(url: str) -> Target:
    """The parts of a URL that may be dialled; raises BadUrl."""
    if len(url) > MAX_URL_LENGTH:
        raise BadUrl(f"the URL is longer than {MAX_URL_LENGTH} characters")
    if not _VISIBLE.fullmatch(url):
        raise BadUrl(
            "the URL has a space, control character, backslash or non-ASCII character; percent-encode it"
        )
    parts = _PARTS.fullmatch(url)
    if parts is None:
        raise BadUrl("the URL is not of the form http://host/path")
    scheme, authority, rest = parts.groups()
    origin = _parse_origin(scheme, authority)
    slash = "" if rest.startswith("/") else "/"
    return Target(origin, f"{origin.scheme}://{origin.authority}{slash}{rest}")


@lru_cache(maxsize=4096)
def _parse_origin(scheme: str, authority: str) -> Origin:
    name = _parse_scheme(scheme)
    if "@" in authority:
        raise BadUrl("the URL has user information before the host")
    host, port = _split_port(authority)
    if host.startswith("["):
        host = _parse_ipv6(host)
        return _origin(name, host, _parse_port(port, name), True, f"[{host}]")
    host = host.lower()
    is_literal = _check_host(host)
    return _origin(name, host, _parse_port(port, name), is_literal, host)


def _origin(scheme: Scheme, host: str, port: int, is_literal: bool, authority: str) -> Origin:
    if port != _DEFAULT_PORTS[scheme]:
        authority = f"{authority}:{port}"
    return Origin(scheme, host, port, is_literal, authority)


def parse_host(text: str) -> str:
    """A host by itself, as `Target.host` names it; raises BadUrl. Of IPv6 the brackets may be there or not."""
    if ":" in text:
        return _parse_ipv6(text if text.startswith("[") and text.endswith("]") else f"[{text}]")
    host = text.lower()
    _check_host(host)
    return host


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
            raise BadUrl("the URL's IPv6 address is not well bracketed")
        return host + bracket, tail[1:] if tail else None
    host, colon, port = authority.partition(":")
    return host, port if colon else None


def _parse_port(port: str | None, scheme: Scheme) -> int:
    if port is None:
        return _DEFAULT_PORTS[scheme]
    if not _PORT.fullmatch(port) or int(port) > 65_535:
        raise BadUrl("the URL's port is not a plain number from 1 to 65535")
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
    """True for an IPv4 address, False for a name; raises for what could be read as either or as neither."""
    if not host:
        raise BadUrl("the URL has no host")
    if len(host) > MAX_HOST_LENGTH:
        raise BadUrl(f"the URL's host is longer than {MAX_HOST_LENGTH} characters")
    labels = host.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise BadUrl("the URL's host is not made of labels of letters, digits, hyphens and underscores")
    if not _NUMERIC_LABEL.fullmatch(labels[-1]):
        return False
    if not _is_dotted_quad(host):
        raise BadUrl("the URL's host is a number but not a canonical dotted quad such as 192.0.2.1")
    return True


def _is_dotted_quad(host: str) -> bool:
    try:
        return str(IPv4Address(host)) == host
    except AddressValueError:
        return False


def check_headers(headers: Iterable[tuple[str, str]]) -> None:
    """Whether a caller may submit these headers; raises BadHeader."""
    count = size = 0
    for name, value in headers:
        count += 1
        size += len(name) + len(value) + 4
        _check_name(name)
        _check_value(name, value)
    if count > MAX_HEADERS:
        raise BadHeader(f"there are more than {MAX_HEADERS} headers")
    if size > MAX_HEADER_BYTES:
        raise BadHeader(f"the headers are larger than {MAX_HEADER_BYTES} bytes together")


def _check_name(name: str) -> None:
    if not _TOKEN.fullmatch(name):
        raise BadHeader(f"header name {name[:80]!r} is not an RFC 9110 token")
    lowered = name.lower()
    if lowered in _HOP or lowered.startswith("proxy-"):
        raise BadHeader(f"header {name} is set by the transport and may not be given")
    if lowered in _OURS:
        raise BadHeader(f"header {name} is set by this service and may not be given")


def _check_value(name: str, value: str) -> None:
    if not _FIELD_VALUE.fullmatch(value):
        raise BadHeader(
            f"header {name} has a value with a line break, a control character or one outside Latin-1"
        )


def format_header_line(name: str, value: str) -> str | bytes:
    """The line that libcurl is given: it checks nothing itself and would pass a line break on to the wire."""
    if not is_header_name(name):
        raise BadHeader(f"header name {name[:80]!r} is not an RFC 9110 token")
    if value.isascii() and value.isprintable() and value.strip():
        return f"{name}: {value}"
    _check_value(name, value)
    if not value or value.isspace():
        return f"{name};"  # libcurl reads "Name:" as an order to leave the header out
    return f"{name}: {value}".encode("latin-1")


@lru_cache(maxsize=1024)
def is_header_name(name: str) -> bool:
    """Whether a header can have that name (RFC 9110)."""
    return _TOKEN.fullmatch(name) is not None

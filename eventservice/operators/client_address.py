"""The address that a request comes from, as far as it can be trusted."""

from __future__ import annotations

from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from django.conf import settings
from django.http import HttpRequest

Address = IPv4Address | IPv6Address


def find_client_address(request: HttpRequest) -> str | None:
    """Return the address of the client: an IPv4 address, or the /64 network of an IPv6 address.

    It is the connection's, unless that is a trusted proxy's (TRUSTED_PROXIES): then it is the last one in X-Forwarded-For
    that no trusted proxy has. Return None if a trusted proxy does not say whose request it is.
    """
    for hop in _list_hops(request):
        address = _parse(hop)
        if hop and address is None:
            return None
        if address is not None and not _is_trusted(address):
            return _to_network(address)
    return None


def describe_client(request: HttpRequest) -> str:
    """Return the address of the client for a log, or `unknown`.

    If all addresses are those of trusted proxies, it is the farthest: that of a client on the host of a proxy, or of a
    proxy that does not say whose request it is.
    """
    if found := find_client_address(request):
        return found
    addresses = [_parse(hop) for hop in _list_hops(request) if hop]
    if not addresses or None in addresses:
        return "unknown"
    return str(addresses[-1])


def _list_hops(request: HttpRequest) -> list[str]:
    """Return the address of the connection, and those that proxies have added, the nearest first."""
    forwarded = request.headers.get("X-Forwarded-For", "")
    hops = [hop.strip() for hop in forwarded.split(",") if hop.strip()]
    return [request.META.get("REMOTE_ADDR", ""), *reversed(hops)]


def _parse(text: str) -> Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_trusted(address: Address) -> bool:
    return any(address in network for network in _parse_networks(tuple(settings.TRUSTED_PROXIES)))


@cache
def _parse_networks(texts: tuple[str, ...]) -> list[IPv4Network | IPv6Network]:
    return [ip_network(text, strict=False) for text in texts]


def _to_network(address: Address) -> str:
    """Return what one client has: of IPv6 addresses, everybody has 2^64."""
    return str(address if address.version == 4 else IPv6Network((int(address), 64), strict=False))

"""Which addresses may be dialled.

Why a table of our own: `ipaddress.is_global` on Python 3.11 calls NAT64 (64:ff9b::/96, whatever it
embeds), multicast (224.0.0.0/4), 192.88.99.0/24 and Teredo (2001::/32) or 6to4 (2002::/16) global,
knows no cloud metadata address, and does not look inside IPv4-in-IPv6 forms. And it has one tier,
where we need two: what only an operator may name, and what an installation may opt into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Self

from django.conf import settings

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class Tier(Enum):
    FORBIDDEN = "forbidden"
    PRIVATE = "private"


@dataclass(frozen=True, slots=True)
class Refusal:
    tier: Tier
    rule: str


def _table(tier: Tier, *rows: tuple[str, str]) -> list[tuple[Network, Refusal]]:
    return [(ip_network(text), Refusal(tier, f"{name} ({text})")) for text, name in rows]


# The first match decides, so single metadata hosts come before the networks that they live in.
_NETWORKS: Final = [
    *_table(
        Tier.FORBIDDEN,
        ("169.254.0.0/16", "link-local and cloud metadata"),
        ("100.100.100.200/32", "cloud metadata"),
        ("168.63.129.16/32", "cloud metadata"),
        ("fd00:ec2::/32", "cloud metadata"),
        ("fd20:ce::/32", "cloud metadata"),
        ("0.0.0.0/8", "unspecified or this network"),
        ("127.0.0.0/8", "loopback"),
        ("192.0.0.0/24", "reserved for protocols"),
        ("192.0.2.0/24", "documentation"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("192.88.99.0/24", "reserved, former 6to4 relays"),
        ("198.18.0.0/15", "benchmarking"),
        ("224.0.0.0/4", "multicast"),
        ("255.255.255.255/32", "broadcast"),
        ("240.0.0.0/4", "reserved"),
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
        # Where the IPv4 address sits depends on a prefix length that only that network's operator knows.
        ("64:ff9b:1::/48", "local-use NAT64"),
        ("2001:db8::/32", "documentation"),
        ("3fff::/20", "documentation"),
    ),
    *_table(
        Tier.PRIVATE,
        ("10.0.0.0/8", "private"),
        ("172.16.0.0/12", "private"),
        ("192.168.0.0/16", "private"),
        ("100.64.0.0/10", "private, carrier-grade NAT"),
        ("fc00::/7", "private, unique local"),
    ),
]
_TEREDO: Final = IPv6Network("2001::/32")
_PROTOCOL_ASSIGNMENTS: Final = IPv6Network("2001::/23")
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_SIX_TO_FOUR: Final = IPv6Network("2002::/16")
_LOW_32_BITS: Final = [
    IPv6Network("::ffff:0:0/96"),  # IPv4-mapped
    IPv6Network("::ffff:0:0:0/96"),  # IPv4-translated (SIIT)
    IPv6Network("64:ff9b::/96"),  # NAT64
    IPv6Network("::/96"),  # IPv4-compatible
]
_TRANSLATED: Final = [*_LOW_32_BITS, _SIX_TO_FOUR, _TEREDO]
_ISATAP_MARKS: Final = (0x00005EFE, 0x02005EFE)


def _parse(ip: str) -> Address | None:
    try:
        return ip_address(ip)
    except ValueError:
        return None


def classify(ip: str) -> Refusal | None:
    """The strictest thing to be said against an address; None for one of the public internet."""
    address = _parse(ip.partition("%")[0])
    if address is None:
        return Refusal(Tier.FORBIDDEN, "not an IP address")
    if isinstance(address, IPv4Address):
        return _listed(address)
    return _classify_ipv6(address)


def _listed(address: Address) -> Refusal | None:
    return next((refusal for network, refusal in _NETWORKS if address in network), None)


def _classify_ipv6(address: IPv6Address) -> Refusal | None:
    inner = [
        Refusal(found.tier, f"IPv6 form of {found.rule}")
        for ip in _embedded(address)
        if (found := _listed(ip))
    ]
    refusals = [refusal for refusal in (_listed(address), *inner) if refusal]
    if refusals:
        return min(refusals, key=lambda refusal: refusal.tier is Tier.PRIVATE)
    if any(address in network for network in _TRANSLATED):
        return None
    if address not in _GLOBAL_UNICAST or address in _PROTOCOL_ASSIGNMENTS:
        return Refusal(Tier.FORBIDDEN, "reserved IPv6 space")
    return None


def _embedded(address: IPv6Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses that a translator or tunnel on the way would send this one's packets to."""
    bits = int(address)
    low = IPv4Address(bits & 0xFFFFFFFF)
    if any(address in network for network in _LOW_32_BITS):
        yield low
    elif address in _SIX_TO_FOUR:
        yield IPv4Address(bits >> 80 & 0xFFFFFFFF)
    elif address in _TEREDO:
        yield IPv4Address(bits >> 64 & 0xFFFFFFFF)
        yield IPv4Address(~bits & 0xFFFFFFFF)
    if bits >> 32 & 0xFFFFFFFF in _ISATAP_MARKS:
        yield low


@dataclass(frozen=True, slots=True)
class _Opening:
    """One entry of the operator's allow-list."""

    network: Network
    port: int | None

    def admits(self, address: Address, port: int) -> bool:
        return (
            self.port in (None, port) and address.version == self.network.version and address in self.network
        )


@dataclass(frozen=True)
class AddressPolicy:
    """What may be dialled: the public internet; private networks by opt-in; the rest by exact entry only.

    Entries of `allow` are `ip:port`, `ip:*`, `network/prefix:port`, with IPv6 in brackets. They admit the
    address as it is dialled: `127.0.0.1:80` does not admit `[::ffff:127.0.0.1]:80`.
    """

    allow_private: bool = False
    allow: frozenset[str] = frozenset()
    _openings: tuple[_Opening, ...] = field(init=False, repr=False, compare=False)
    _remembered: Callable[[str, int], str | None] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_openings", tuple(_parse_opening(entry) for entry in sorted(self.allow)))
        object.__setattr__(self, "_remembered", lru_cache(maxsize=8192)(self._find_rule))

    @classmethod
    def from_settings(cls) -> Self:
        """Return the policy of this installation. Not for the settings module itself, which imports this one."""
        return cls(allow_private=settings.EGRESS_ALLOW_PRIVATE, allow=frozenset(settings.EGRESS_ALLOW))

    def find_refusing_rule(self, ip: str, port: int) -> str | None:
        """None when it may be dialled, else the rule that refuses it."""
        return self._remembered(ip, port)

    def _find_rule(self, ip: str, port: int) -> str | None:
        refusal = classify(ip)
        if refusal is None or (refusal.tier is Tier.PRIVATE and self.allow_private):
            return None
        return None if self._is_opened(ip, port) else refusal.rule

    def _is_opened(self, ip: str, port: int) -> bool:
        address = _parse(ip)
        if address is None or "%" in ip:
            return False
        return any(opening.admits(address, port) for opening in self._openings)


def _parse_opening(entry: str) -> _Opening:
    host, _, port = entry.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"allow-list entry {entry!r}: an IPv6 address is written in brackets, [::1]:443")
    if port != "*" and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise ValueError(f"allow-list entry {entry!r} does not end in a port from 1 to 65535 or in *")
    try:
        return _Opening(ip_network(host), None if port == "*" else int(port))
    except ValueError as error:
        raise ValueError(f"allow-list entry {entry!r} is not ip:port or network:port: {error}") from None

"""Decide which IP addresses may be connected to.

The table of networks is our own because `ipaddress.is_global` of Python 3.11 does not suffice. It takes for global: NAT64
(64:ff9b::/96, whatever address is embedded), multicast (224.0.0.0/4), 192.88.99.0/24, Teredo (2001::/32) and 6to4
(2002::/16). It knows no cloud metadata address, and does not look inside IPv6 forms of IPv4 addresses. And it knows one
tier, while we need two: private networks, which an installation may allow as a whole, and addresses that are forbidden
unless an operator allows exactly them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from django.conf import settings

from execution.url_rules import Origin

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


LOCAL_ADDRESS: Final = "127.0.0.1"
# The entries of an allow-list that allow calls to this machine.
LOOPBACK: Final = ("127.0.0.0/8:*", "[::1]:*")


class Tier(Enum):
    FORBIDDEN = "forbidden"
    PRIVATE = "private"


@dataclass(frozen=True, slots=True)
class Refusal:
    tier: Tier
    rule: str


def _build_table(tier: Tier, *rows: tuple[str, str]) -> list[tuple[Network, Refusal]]:
    return [(ip_network(text), Refusal(tier, f"{name} ({text})")) for text, name in rows]


# The first match decides, so metadata addresses come before the networks that contain them.
_NETWORKS: Final = [
    *_build_table(
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
        # The position of the IPv4 address depends on a prefix length that only the network's operator knows.
        ("64:ff9b:1::/48", "local-use NAT64"),
        ("2001:db8::/32", "documentation"),
        ("3fff::/20", "documentation"),
    ),
    *_build_table(
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
    """Return the strictest reason to refuse an address, or None if it belongs to the public internet."""
    address = _parse(ip.partition("%")[0])
    if address is None:
        return Refusal(Tier.FORBIDDEN, "not an IP address")
    if isinstance(address, IPv4Address):
        return _find_refusal(address)
    return _classify_ipv6(address)


def _find_refusal(address: Address) -> Refusal | None:
    return next((refusal for network, refusal in _NETWORKS if address in network), None)


def _classify_ipv6(address: IPv6Address) -> Refusal | None:
    inner = [
        Refusal(found.tier, f"IPv6 form of {found.rule}")
        for ip in _list_embedded(address)
        if (found := _find_refusal(ip))
    ]
    refusals = [refusal for refusal in (_find_refusal(address), *inner) if refusal]
    if refusals:
        return min(refusals, key=lambda refusal: refusal.tier is Tier.PRIVATE)
    if any(address in network for network in _TRANSLATED):
        return None
    if address not in _GLOBAL_UNICAST or address in _PROTOCOL_ASSIGNMENTS:
        return Refusal(Tier.FORBIDDEN, "reserved IPv6 space")
    return None


def _list_embedded(address: IPv6Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses that a translator or tunnel on the way would send the packets to."""
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
class _AllowEntry:
    """One parsed entry of the operator's allow-list."""

    network: Network
    port: int | None

    def admits(self, address: Address, port: int) -> bool:
        return (
            self.port in (None, port) and address.version == self.network.version and address in self.network
        )


@dataclass(frozen=True)
class AddressPolicy:
    """The addresses that may be connected to: public ones, private ones if allowed, and others by explicit entry.

    Entries of `allow` are `ip:port`, `ip:*` or `network/prefix:port`, with IPv6 addresses in brackets. They are compared
    with the address in the form it is used: `127.0.0.1:80` does not allow `[::ffff:127.0.0.1]:80`.
    """

    allow_private: bool = False
    allow: frozenset[str] = frozenset()
    _entries: tuple[_AllowEntry, ...] = field(init=False, repr=False, compare=False)
    _find_rule_cached: Callable[[str, int], str | None] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_entries", tuple(_parse_entry(entry) for entry in sorted(self.allow)))
        object.__setattr__(self, "_find_rule_cached", lru_cache(maxsize=8192)(self._find_rule))

    @classmethod
    def from_settings(cls) -> AddressPolicy:
        """Return the policy that the settings configure. It is the same for all processes."""
        return _build_policy(settings.EGRESS_ALLOW_PRIVATE, frozenset(settings.EGRESS_ALLOW))

    def find_refusing_rule(self, ip: str, port: int) -> str | None:
        """Return the rule that refuses the address, or None if it may be connected to."""
        return self._find_rule_cached(ip, port)

    def explain_refusal(self, origin: Origin) -> str | None:
        """Return why nothing can be sent to the origin, and the setting that would change this, or None.

        Only an address in the URL itself is checked. What a name resolves to is known only when it is called.
        """
        ip = origin.host if origin.is_literal else LOCAL_ADDRESS if is_local_name(origin.host) else None
        rule = ip and self.find_refusing_rule(ip, origin.port)
        if not (ip and rule):
            return None
        return (
            f"{_join(origin.host, origin.port)} is an address that may not be called: {rule}. An operator can allow it with "
            f"the setting {name_settings(ip)}={_join(ip, origin.port)}"
        )

    def _find_rule(self, ip: str, port: int) -> str | None:
        refusal = classify(ip)
        if refusal is None or (refusal.tier is Tier.PRIVATE and self.allow_private):
            return None
        return None if self._is_allowed_explicitly(ip, port) else refusal.rule

    def _is_allowed_explicitly(self, ip: str, port: int) -> bool:
        address = _parse(ip)
        if address is None or "%" in ip:
            return False
        return any(entry.admits(address, port) for entry in self._entries)


@lru_cache(maxsize=8)
def _build_policy(allow_private: bool, allow: frozenset[str]) -> AddressPolicy:
    return AddressPolicy(allow_private=allow_private, allow=allow)


def name_settings(ip: str) -> str:
    """Return the names of the settings that can allow a refused address."""
    refusal = classify(ip)
    is_private = refusal is not None and refusal.tier is Tier.PRIVATE
    return "EGRESS_ALLOW_PRIVATE or EGRESS_ALLOW" if is_private else "EGRESS_ALLOW"


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_local_name(host: str) -> bool:
    """Return whether a name always stands for this machine (RFC 6761)."""
    return host == "localhost" or host.endswith(".localhost")


def check_entry(entry: str, *, production: bool = False) -> None:
    """Raise ValueError for an invalid entry of an allow-list.

    Production accepts a forbidden address only as one address with one port, so that an exception made for development
    does not reach it.
    """
    parsed = _parse_entry(entry)
    is_exact = parsed.network.num_addresses == 1 and parsed.port is not None
    if production and not is_exact and _overlaps_forbidden(parsed.network):
        raise ValueError(
            f"allow-list entry {entry!r} allows several forbidden addresses or ports, such as those of this machine. In"
            " production, list each as ip:port"
        )


def _overlaps_forbidden(network: Network) -> bool:
    if any(
        refusal.tier is Tier.FORBIDDEN
        and forbidden.version == network.version
        and forbidden.overlaps(network)
        for forbidden, refusal in _NETWORKS
    ):
        return True
    refusal = classify(str(network.network_address))
    return refusal is not None and refusal.tier is Tier.FORBIDDEN


def _parse_entry(entry: str) -> _AllowEntry:
    host, _, port = entry.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(
            f"allow-list entry {entry!r}: an IPv6 address must be in brackets, for example [::1]:443"
        )
    if port != "*" and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise ValueError(f"allow-list entry {entry!r} must end in a port from 1 to 65535 or in *")
    try:
        return _AllowEntry(ip_network(host), None if port == "*" else int(port))
    except ValueError as error:
        raise ValueError(f"allow-list entry {entry!r} must be ip:port or network:port: {error}") from None

"""The address policy: two tiers, IPv6 forms of IPv4 addresses, and the operator's allow-list."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execution.addresses import AddressPolicy

PUBLIC = [
    "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255",
    "128.0.0.1", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.0", "192.167.255.255",
    "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "2606:4700::1111", "2001:4860:4860::8888",
    "2a00:1450::1", "64:ff9b::8.8.8.8", "2002:808:808::1", "::ffff:8.8.8.8", "2001:200::1",
]  # fmt: skip
FORBIDDEN = [
    "127.0.0.1",
    "169.254.169.254",
    "0.0.0.0",
    "::1",
    "fe80::1",
    "224.0.0.1",
    "240.0.0.1",
    "::ffff:127.0.0.1",
]
PRIVATE = [
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "fd00::1",
    "::ffff:10.0.0.1",
    "64:ff9b::10.0.0.1",
]


@pytest.mark.parametrize("ip", PUBLIC)
def test_the_public_internet_is_allowed(ip: str) -> None:
    assert AddressPolicy().find_refusing_rule(ip, 443) is None


@pytest.mark.parametrize("ip", PRIVATE)
def test_private_networks_can_be_allowed(ip: str) -> None:
    assert "private" in str(AddressPolicy().find_refusing_rule(ip, 443))
    assert AddressPolicy(allow_private=True).find_refusing_rule(ip, 443) is None


@pytest.mark.parametrize("ip", FORBIDDEN)
def test_forbidden_addresses_are_not_allowed_with_the_private_ones(ip: str) -> None:
    assert AddressPolicy(allow_private=True).find_refusing_rule(ip, 443) is not None


@pytest.mark.parametrize("ip", ["100.100.100.200", "fd00:ec2::254", "168.63.129.16"])
def test_metadata_services_are_forbidden_in_every_network(ip: str) -> None:
    assert "metadata" in str(AddressPolicy(allow_private=True).find_refusing_rule(ip, 80))


@pytest.mark.parametrize(
    "ip", ["", "localhost", "1.2.3", "0x7f.0.0.1", "::1::", "fe80::1%eth0", "127.0.0.1\n"]
)
def test_an_invalid_address_or_one_with_a_zone_is_refused(ip: str) -> None:
    assert AddressPolicy(allow_private=True).find_refusing_rule(ip, 80) is not None


@given(st.ip_addresses(v=4))
def test_an_embedded_address_is_checked_like_the_plain_one(ip: IPv4Address) -> None:
    policy = AddressPolicy()
    plain = policy.find_refusing_rule(str(ip), 80) is None
    number = int(ip)
    mapped = IPv6Address(0xFFFF << 32 | number)
    nat64 = IPv6Address(0x64FF9B << 96 | number)
    six_to_four = IPv6Address(0x2002 << 112 | number << 80)
    for form in (mapped, nat64, six_to_four):
        assert (policy.find_refusing_rule(str(form), 80) is None) == plain


@given(st.ip_addresses(v=4))
def test_both_addresses_in_a_teredo_address_are_checked(ip: IPv4Address) -> None:
    plain = AddressPolicy().find_refusing_rule(str(ip), 80) is None
    client = IPv6Address(0x20010000 << 96 | 0x08080808 << 64 | (~int(ip) & 0xFFFFFFFF))
    server = IPv6Address(0x20010000 << 96 | int(ip) << 64 | (~0x08080808 & 0xFFFFFFFF))
    for form in (client, server):
        assert (AddressPolicy().find_refusing_rule(str(form), 80) is None) == plain


@given(st.ip_addresses())
def test_nothing_that_python_calls_local_is_let_through(ip: IPv4Address | IPv6Address) -> None:
    if ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        assert AddressPolicy(allow_private=True).find_refusing_rule(str(ip), 80) is not None


@pytest.mark.parametrize(
    ("entry", "let_through", "refused"),
    [
        ("127.0.0.1:8080", [("127.0.0.1", 8080)], [("127.0.0.1", 80), ("127.0.0.2", 8080), ("::1", 8080)]),
        (
            "127.0.0.1:*",
            [("127.0.0.1", 1), ("127.0.0.1", 65535)],
            [("127.0.0.2", 1), ("::ffff:127.0.0.1", 1)],
        ),
        ("[::1]:80", [("::1", 80)], [("::1", 81), ("127.0.0.1", 80), ("::", 80)]),
        ("10.1.0.0/16:443", [("10.1.255.1", 443)], [("10.2.0.1", 443), ("10.1.0.1", 80)]),
        ("[fd00::/8]:*", [("fd12::1", 7)], [("fc00::1", 7), ("fe80::1", 7), ("fe80::1%lo", 7)]),
    ],
)
def test_an_entry_allows_what_it_says(
    entry: str, let_through: list[tuple[str, int]], refused: list[tuple[str, int]]
) -> None:
    policy = AddressPolicy(allow=frozenset({entry}))
    assert [pair for pair in let_through if policy.find_refusing_rule(*pair)] == []
    assert [pair for pair in refused if not policy.find_refusing_rule(*pair)] == []


@pytest.mark.parametrize(
    "entry",
    ["", "*", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:http", "127.0.0.1:-1", "::1:80",
     "localhost:80", "*:80", ":80", "10.0.0.1/8:80", "[::1]", "[::1:80", "127.0.0.1:８０"],
)  # fmt: skip
def test_an_invalid_entry_is_named_in_the_error(entry: str) -> None:
    with pytest.raises(ValueError, match="allow-list entry"):
        AddressPolicy(allow=frozenset({entry}))

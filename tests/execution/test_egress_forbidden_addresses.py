"""No connection is ever opened to a forbidden address, in whatever notation it is given.

A canary listens on every local address and must see no connection. All URLs contain its port, so any that reached this
machine would reach the canary.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

import pytest

from execution.addresses import AddressPolicy
from execution.egress import Limits
from execution.outcome import Errored, ErrorKind, Responded
from tests.execution import hostile
from tests.execution.hostile import (
    Canary,
    answering,
    build_attempt,
    canary_listening,
    gather,
    perform,
    running,
)

PORT = "{port}"

LOOPBACK_SPELLINGS = [
    "127.0.0.1", "127.0.0.2", "127.1.2.3", "127.255.255.254", "127.255.255.255",
    "127.1", "127.0.1", "127.", "127.0.0.1.", "127.0.0.01", "127.0.0.001", "0127.0.0.1", "127.00.0.1",
    "0177.0.0.1", "0177.0.0.01", "0177.1", "00177.0.0.1", "017700000001", "0o177.0.0.1",
    "0x7f.0.0.1", "0x7f.0x0.0x0.0x1", "0x7f.1", "0x7f000001", "0X7F000001", "0x7F.1", "0x07f.0.0.1", "0x.0x.0x.0x1",
    "2130706433", "02130706433", "2130706434", "4294967295", "4294967296", "0", "00", "0x0", "1",
    "127.0.0.1.1", "127.0.0.256", "127.0.0.-1", "127.0.0.1%00", "127.0.0.1%2f", "%31%32%37.0.0.1", "127%2e0%2e0%2e1",
    "localhost", "LOCALHOST", "localhost.", "localhost.localdomain", "ip6-localhost", "ip6-loopback",
    "[::1]", "[0:0:0:0:0:0:0:1]", "[0000:0000:0000:0000:0000:0000:0000:0001]", "[::01]", "[::0001]", "[::1%lo]",
    "[::1%251]", "[::1%25lo]", "[::]", "[0:0::0]", "[::127.0.0.1]", "[::7f00:1]", "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]", "[::FFFF:7F00:0001]", "[0:0:0:0:0:ffff:127.0.0.1]", "[::ffff:0:127.0.0.1]",
    "[::ffff:0.0.0.0]", "[::ffff:127.1]", "[64:ff9b::127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::127.0.0.1]",
    "[2002:7f00:1::]", "[2002:7f00:0001::1]", "[2001:0:7f00:1::]", "[2001:0:808:808:0:0:80ff:fffe]",
    "[fe80::5efe:7f00:1]", "[2606:4700::5efe:127.0.0.1]", "[::1", "::1", "[::1]]", "[[::1]]", "[127.0.0.1]",
    "0.0.0.0", "0.0.0.1", "0.1.2.3", "0.0.0", "0.0",
    "①②⑦.⓪.⓪.①", "127。0。0。1", "127．0．0．1", "１２７.0.0.1", "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ", "loc\u00adalhost", "lo\u200bcalhost",
]  # fmt: skip

OTHER_FORBIDDEN = [
    "169.254.169.254", "169.254.0.1", "169.254.170.2", "2852039166", "0xa9fea9fe", "0xa9.0xfe.0xa9.0xfe",
    "0251.0376.0251.0376", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]",
    "[2002:a9fe:a9fe::]", "[::a9fe:a9fe]", "100.100.100.200", "168.63.129.16", "192.0.0.192",
    "[fd00:ec2::254]", "[fd00:ec2::23]", "[fd20:ce::254]", "[fe80::1]", "[fe80::a9fe:a9fe]", "[febf::1]",
    "[fec0::1]", "[ff02::1]", "[ff05::2]", "224.0.0.1", "239.255.255.250", "240.0.0.1", "254.1.2.3",
    "255.255.255.255", "192.0.2.1", "198.51.100.7", "203.0.113.9", "198.18.0.1", "198.19.255.254", "192.0.0.1",
    "192.0.0.170", "192.88.99.1", "[2001:db8::1]", "[3fff::1]", "[100::1]", "[100:0:0:1::1]", "[5f00::1]",
    "[2001:2::1]", "[2001:10::1]", "[2001:20::1]", "[4000::1]", "[e000::1]", "[64:ff9b:1::8.8.8.8]",
    "[64:ff9b:1:ffff::1]", "[::ffff:224.0.0.1]", "[::ffff:255.255.255.255]", "[2001:0:e000:1::]",
]  # fmt: skip

PRIVATE = [
    "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.254", "192.168.0.1", "192.168.255.255", "100.64.0.1",
    "100.127.255.254", "[fc00::1]", "[fd12:3456:789a::1]", "[::ffff:10.0.0.1]", "[::10.0.0.1]",
    "[64:ff9b::192.168.0.1]", "[2002:c0a8:1::]", "[2001:0:a00:1::]", "167772161", "0xa000001", "012.0.0.1", "10.1",
]  # fmt: skip

# URLs in which one parser sees a harmless host and another the canary's.
SPLIT_READINGS = [
    "http://example.com@127.0.0.1:{port}/", "http://user:pass@127.0.0.1:{port}/", "http://@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}@example.com/", "http://example.com:80@127.0.0.1:{port}/", "http://a@b@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}\\@example.com/", "http://example.com\\@127.0.0.1:{port}/", "http:\\\\127.0.0.1:{port}/",
    "http://127.0.0.1:{port}#@example.com/", "http://127.0.0.1:{port}?@example.com/", "http://127.0.0.1:{port}/@example.com",
    "http://example.com%40127.0.0.1:{port}/", "http://example.com%2f@127.0.0.1:{port}/",
    "http://example.com%00@127.0.0.1:{port}/", "http://127.0.0.1:{port}%2f.example.com/", "http://127.0.0.1%3a{port}/",
    "http://127.0.0.1:{port}:80/", "http://127.0.0.1:+{port}/", "http://127.0.0.1: {port}/", "http://127.0.0.1:0{port}/",
    "http://127.0.0.1:{port}a/", "http://127.0.0.1:\uff11/", "http://127.0.0.1 :{port}/", "http:// 127.0.0.1:{port}/",
    " http://127.0.0.1:{port}/", "http://127.0.0.1:{port}/ ", "\thttp://127.0.0.1:{port}/", "ht\ntp://127.0.0.1:{port}/",
    "http://127.0.0.1\n:{port}/", "http://127.0.0.1\t:{port}/", "http://127.0.0.1:{port}/\r\nHost: a\r\n\r\n",
    "http://127.0.0.1\x00.example.com:{port}/", "http://127.0.0.1:{port}/\x00", "http:///127.0.0.1:{port}/",
    "http:/127.0.0.1:{port}/", "http:127.0.0.1:{port}/", "//127.0.0.1:{port}/", "127.0.0.1:{port}/", "http://:{port}/",
    "http://[::1]:{port}@example.com/", "http://[::1]example.com:{port}/", "http://[::1].example.com:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/", "http://[::1]%40example.com:{port}/", "https://127.0.0.1:{port}/",
    "HTTP://127.0.0.1:{port}/", "ftp://127.0.0.1:{port}/", "file://127.0.0.1:{port}/etc/passwd", "file:///etc/passwd",
    "gopher://127.0.0.1:{port}/_x", "dict://127.0.0.1:{port}/d", "ldap://127.0.0.1:{port}/", "tftp://127.0.0.1:{port}/x",
    "ws://127.0.0.1:{port}/", "jar:http://127.0.0.1:{port}!/", "url:http://127.0.0.1:{port}/", "unix:///run/x.sock",
    "http+unix://127.0.0.1:{port}/", "telnet://127.0.0.1:{port}/", "smb://127.0.0.1:{port}/", "mqtt://127.0.0.1:{port}/",
    "http://{{127.0.0.1,127.0.0.2}}:{port}/", "http://127.0.0.[1-3]:{port}/", "http://127.0.0.1;:{port}/",
    "http://127.0.0.1,example.com:{port}/", "http://$(hostname):{port}/", "http://-127.0.0.1:{port}/",
    "http://127.0.0.1-:{port}/", "http://example.com#@127.0.0.1:{port}\\/", "", "http://", "http://?", "http://#",
]  # fmt: skip

NAMED = [spelling.strip("[]") for spelling in (*OTHER_FORBIDDEN, *PRIVATE)]
RESOLVED_TO = sorted(
    {
        name
        for name in NAMED
        if (":" in name or name.count(".") == 3) and "x" not in name and "0251" not in name
    }
    - {"012.0.0.1"}
    | {"127.0.0.1", "127.9.9.9", "::1", "::", "0.0.0.0", "::ffff:127.0.0.1", "fe80::1%lo", "64:ff9b::7f00:1"}
)

URLS = [
    *(f"http://{host}:{PORT}/" for host in (*LOOPBACK_SPELLINGS, *OTHER_FORBIDDEN, *PRIVATE)),
    *SPLIT_READINGS,
]


@pytest.fixture(scope="module")
def canary() -> Iterator[Canary]:
    with canary_listening() as listening:
        yield listening


def is_refused(outcome: object) -> bool:
    return (
        isinstance(outcome, Errored)
        and outcome.kind in (ErrorKind.EGRESS, ErrorKind.DNS)
        and not outcome.may_have_been_sent
    )


def always_resolve_to(address: str) -> Callable[[str], Sequence[str]]:
    return lambda _host: [address]


def test_there_are_enough_vectors() -> None:
    assert len(set(URLS)) + len(RESOLVED_TO) >= 250


def test_the_canary_counts_connections() -> None:
    with canary_listening() as own, running() as egress:
        assert isinstance(perform(egress, build_attempt(f"http://127.0.0.1:{own.port}/")), Responded)
        assert own.connections == 1


def test_it_refuses_every_url_that_leads_to_a_forbidden_address(canary: Canary) -> None:
    """All names resolve to the canary, so that only the checks protect it."""
    urls = [url.format(port=canary.port) for url in URLS]
    with running(AddressPolicy(), lookup=always_resolve_to("127.0.0.1")) as egress:
        egress.send([build_attempt(url, key=url, timeout=3) for url in urls])
        outcomes = gather(egress, len(urls))
    assert [o for o in outcomes if not is_refused(o)] == []
    assert len(outcomes) == len(urls)
    assert canary.connections == 0


def test_it_refuses_names_that_the_system_resolves_to_loopback(canary: Canary) -> None:
    with running(AddressPolicy()) as egress:
        for name in ("localhost", "LocalHost"):
            assert is_refused(perform(egress, build_attempt(f"http://{name}:{canary.port}/", timeout=3)))
    assert canary.connections == 0


@pytest.mark.parametrize("address", RESOLVED_TO)
def test_it_refuses_a_name_that_resolves_to(address: str, canary: Canary) -> None:
    with running(AddressPolicy(), lookup=always_resolve_to(address)) as egress:
        outcome = perform(egress, build_attempt(f"http://innocent.example:{canary.port}/"))
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.EGRESS
    assert not outcome.may_have_been_sent
    assert canary.connections == 0


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "::1"]]
)
def test_one_forbidden_address_among_several_refuses_them_all(addresses: list[str], canary: Canary) -> None:
    policy = AddressPolicy(allow=frozenset({f"127.0.0.1:{canary.port}"}))
    with running(policy, lookup=lambda _host: addresses) as egress:
        assert is_refused(perform(egress, build_attempt(f"http://mixed.example:{canary.port}/")))
    assert canary.connections == 0


def test_a_name_that_is_rebound_is_checked_again(canary: Canary) -> None:
    """The name resolves to an allowed address first, then to the canary."""
    answers = cycle([["127.0.0.3"], ["127.0.0.1"]])
    limits = Limits(dns_keep_seconds=0)
    policy = AddressPolicy(allow=frozenset({"127.0.0.3:*"}))
    with running(policy, limits, lookup=lambda _host: next(answers)) as egress:
        url = f"http://rebound.example:{canary.port + 1 if canary.port < 65535 else 1}/"
        kinds = []
        for _ in range(20):
            outcome = perform(egress, build_attempt(url))
            assert isinstance(outcome, Errored)
            time.sleep(0.02)  # addresses are used for at least this long
            kinds.append(outcome.kind)
    assert set(kinds) == {ErrorKind.CONNECT, ErrorKind.EGRESS}
    assert canary.connections == 0


class BlindPolicy(AddressPolicy):
    """Allows every address in the first `blind` checks, as if a name were rebound after a check."""

    blind = 0

    def find_refusing_rule(self, ip: str, port: int) -> str | None:
        object.__setattr__(self, "blind", self.blind - 1)
        return None if self.blind >= 0 else super().find_refusing_rule(ip, port)


def test_the_address_of_each_socket_is_checked_when_it_is_opened(canary: Canary) -> None:
    policy = BlindPolicy()
    object.__setattr__(policy, "blind", 1)
    with running(policy, lookup=always_resolve_to("127.0.0.1")) as egress:
        assert is_refused(perform(egress, build_attempt(f"http://late.example:{canary.port}/")))
    assert canary.connections == 0


def test_after_one_address_was_refused_no_other_is_tried(canary: Canary) -> None:
    policy = BlindPolicy(allow=frozenset({"127.0.0.2:*"}))
    object.__setattr__(policy, "blind", 2)
    with running(policy, lookup=lambda _host: ["127.0.0.1", "127.0.0.2"]) as egress:
        assert is_refused(perform(egress, build_attempt(f"http://late.example:{canary.port}/")))
    assert canary.connections == 0


def test_nothing_is_written_to_a_peer_that_turns_out_to_be_forbidden() -> None:
    policy = BlindPolicy()
    object.__setattr__(policy, "blind", 2)  # the check of the name, and that of the socket
    seen: list[bytes] = []
    with (
        hostile.serving(lambda connection: seen.append(connection.recv(100))) as server,
        running(policy, lookup=always_resolve_to("127.0.0.1")) as egress,
    ):
        assert is_refused(perform(egress, build_attempt(f"http://late.example:{server.port}/")))
    assert b"".join(seen) == b""


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_a_forbidden_address_is_an_outcome_and_not_followed(
    status: int, canary: Canary
) -> None:
    # A list, because the server responds in threads, and a generator cannot be shared among them.
    locations = cycle([url.format(port=canary.port) for url in URLS if url.isprintable() and url.isascii()])

    def redirect(_request: hostile.Request) -> bytes:
        line = f"HTTP/1.1 {status} Moved\r\nLocation: {next(locations)}\r\nContent-Length: 0\r\n\r\n"
        return (
            line.encode()
            if status != 303
            else line.replace("Content", f"Refresh: 0;url=http://127.0.0.1:{canary.port}\r\nContent").encode()
        )

    with answering(redirect) as server:
        policy = AddressPolicy(allow=frozenset({server.address}))
        with running(policy) as egress:
            egress.send([build_attempt(server.url(), key=n) for n in range(60)])
            outcomes = gather(egress, 60)
    assert {o.status for o in outcomes if isinstance(o, Responded)} == {status}
    assert len(outcomes) == 60
    assert canary.connections == 0


def test_alternative_services_are_not_followed(canary: Canary) -> None:
    advert = (
        f'HTTP/1.1 200 OK\r\nAlt-Svc: h2="127.0.0.1:{canary.port}"; persist=1\r\nContent-Length: 0\r\n\r\n'
    )
    policy = AddressPolicy(allow=frozenset({"127.0.0.1:*"}))
    with answering(lambda _request: advert.encode()) as server, running(policy) as egress:
        for _ in range(3):
            assert isinstance(perform(egress, build_attempt(server.url())), Responded)
    assert canary.connections == 0


def test_the_allow_list_lets_its_exact_address_and_port_through_and_nothing_else(canary: Canary) -> None:
    with answering(lambda _request: hostile.OK) as server:
        policy = AddressPolicy(allow=frozenset({server.address}))
        neighbors = [
            f"127.0.0.1:{canary.port}", f"127.0.0.2:{server.port}", f"[::1]:{server.port}",
            f"[::ffff:127.0.0.1]:{server.port}", f"[::127.0.0.1]:{server.port}", f"0.0.0.0:{server.port}",
        ]  # fmt: skip
        with running(policy) as egress:
            assert isinstance(perform(egress, build_attempt(server.url())), Responded)
            assert all(is_refused(perform(egress, build_attempt(f"http://{other}/"))) for other in neighbors)
    assert len(server.requests) == 1
    assert canary.connections == 0


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy"])
def test_proxy_variables_of_the_environment_are_ignored(
    name: str, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, f"http://127.0.0.1:{canary.port}")
    with running(AddressPolicy(), lookup=always_resolve_to("192.0.2.1")) as egress:
        assert is_refused(perform(egress, build_attempt("http://proxied.example/")))
    assert canary.connections == 0


# --- what the tenant is told --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ip", ["10.0.0.1", "169.254.169.254", "127.0.0.1", "fd00::1", "224.0.0.1"])
def test_an_error_does_not_tell_which_network_a_name_resolves_to_but_the_log_does(
    ip: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running(AddressPolicy(), lookup=lambda _host: ["93.184.215.14", ip]) as egress:
        outcome = perform(egress, build_attempt("http://db.internal.example/", tenant="t"))
        again = perform(egress, build_attempt("http://db.internal.example/", tenant="t"))
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.EGRESS
    assert "db.internal.example" in outcome.message
    assert (outcome.message, outcome.details) == (again.message, again.details)  # type: ignore[union-attr]
    told = f"{outcome.message} {dict(outcome.details)}"
    hints = (ip, "private", "link-local", "loopback", "multicast", "metadata", "unique local", "/8", "/16")
    assert not [hint for hint in hints if hint in told]
    record = next(record for record in caplog.records if "address_refused" in record.getMessage())
    assert "EGRESS_ALLOW" in record.getMessage()
    assert ip in record.getMessage() or ip in str(record.__dict__)


def test_every_network_has_the_same_message() -> None:
    addresses = iter(["10.0.0.1", "169.254.169.254", "127.0.0.1", "192.168.0.1"])
    limits = Limits(dns_keep_seconds=0)
    with running(AddressPolicy(), limits, lookup=lambda _host: [next(addresses)]) as egress:
        messages = set()
        for _ in range(4):
            outcome = perform(egress, build_attempt("http://db.internal.example/"))
            assert isinstance(outcome, Errored)
            messages.add(outcome.message)
            time.sleep(0.05)
    assert len(messages) == 1


def test_the_rule_is_told_for_an_address_that_the_tenant_has_written_itself() -> None:
    with running(AddressPolicy()) as egress:
        outcome = perform(egress, build_attempt("http://10.0.0.1/"))
    assert isinstance(outcome, Errored)
    assert "private" in outcome.message

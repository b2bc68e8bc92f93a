"""URLs have one interpretation, and headers cannot break out of their line."""

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execution.outcome import Errored, ErrorKind
from execution.url_rules import BadHeader, BadUrl, check_headers, format_header_line, parse_target
from tests.execution import hostile
from tests.execution.hostile import answering, build_attempt, perform, running


@pytest.mark.parametrize(
    ("url", "rebuilt"),
    [
        ("http://example.com", "http://example.com/"),
        ("HTTP://EXAMPLE.com:80/A", "http://example.com/A"),
        ("https://example.com:443/?q#f", "https://example.com/?q"),
        ("https://example.com:80/", "https://example.com:80/"),
        ("http://example.com?q=1/2", "http://example.com/?q=1/2"),
        ("http://example.com#f", "http://example.com/"),
        ("http://[2606:4700:0::1111]:8080/x", "http://[2606:4700::1111]:8080/x"),
        ("http://8.8.8.8/", "http://8.8.8.8/"),
        ("http://my_service.internal-1/", "http://my_service.internal-1/"),
        ("http://1.2.3.4.example/", "http://1.2.3.4.example/"),
        ("http://xn--bcher-kva.example/", "http://xn--bcher-kva.example/"),
        ("http://example.com/a/../b?x=http://u@h#y", "http://example.com/a/../b?x=http://u@h"),
    ],
)
def test_it_reads_and_rebuilds(url: str, rebuilt: str) -> None:
    assert parse_target(url).url == rebuilt


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("ftp://example.com/", "scheme"),
        ("example.com/", "form"),
        ("http://u@example.com/", "user name or password"),
        ("http://example.com/a b", "space"),
        ("http://example.com/\\", "backslash"),
        ("http://bücher.example/", "non-ASCII"),
        ("http://example.com/ü", "non-ASCII"),
        ("http:///path", "no host"),
        ("http://" + "a." * 127 + "example/", "longer than 253"),
        ("http://" + "a" * 64 + ".example/", "labels"),
        ("http://example..com/", "labels"),
        ("http://example.com./", "labels"),
        ("http://-example.com/", "labels"),
        ("http://exa%6dple.com/", "labels"),
        ("http://example.com:/", "port"),
        ("http://example.com:0/", "port"),
        ("http://example.com:080/", "port"),
        ("http://example.com:65536/", "port"),
        ("http://127.1/", "IPv4 address"),
        ("http://0x7f000001/", "IPv4 address"),
        ("http://a.0x/", "IPv4 address"),
        ("http://example.1/", "IPv4 address"),
        ("http://[fe80::1%25eth0]/", "zone"),
        ("http://[::1/", "bracket"),
        ("http://[::g]/", "IPv6"),
        ("http://example.com/" + "a" * 2048, "longer than 2048"),
    ],
)
def test_it_refuses_and_names_the_rule(url: str, rule: str) -> None:
    with pytest.raises(BadUrl, match=rule):
        parse_target(url)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for candidate in (text, f"http://{text}", f"http://example.com{text}"):
        try:
            target = parse_target(candidate)
        except BadUrl:
            continue
        assert parse_target(target.url) == target


URL_PARTS = st.lists(
    st.sampled_from(["http://", "https://", "a", "1", "0x", "127", ".", ":", "80", "@", "/", "?", "#", "[", "]", "::1", "%", "-"]),
    max_size=12,
).map("".join)  # fmt: skip


@given(URL_PARTS)
def test_a_rebuilt_url_has_one_interpretation(text: str) -> None:
    """Python's own parser stands for any other parser that may read the rebuilt URL."""
    try:
        target = parse_target(text)
    except BadUrl:
        return
    other = urlsplit(target.url)
    assert other.hostname == target.host
    assert (other.port or {"http": 80, "https": 443}[other.scheme]) == target.origin.port
    assert other.username is None


FORBIDDEN_HEADERS = [
    "Host", "content-length", "Transfer-Encoding", "Connection", "Keep-Alive", "TE", "Upgrade", "Trailer", "Expect",
    "Proxy-Authorization", "proxy-connection", "X-Service-Call-Id", "x-attempt", "Webhook-Id", "Webhook-Timestamp",
    "Webhook-Signature",
]  # fmt: skip


@pytest.mark.parametrize("name", FORBIDDEN_HEADERS)
def test_a_caller_may_not_set(name: str) -> None:
    with pytest.raises(BadHeader, match=name):
        check_headers([("Accept", "*/*"), (name, "x")])


@pytest.mark.parametrize("name", ["", "A B", "A:", "A\r\nB", "Ä", "A\x00", "(a)", "a/b", '"a"', "\tA"])
def test_a_header_name_is_a_token(name: str) -> None:
    with pytest.raises(BadHeader, match="not a valid header name"):
        check_headers([(name, "x")])


@pytest.mark.parametrize("value", ["a\r\nB: c", "a\nb", "a\rb", "a\x00b", "a\x7fb", "a\x1bb", "snow ☃"])
def test_a_header_value_stays_on_its_line(value: str) -> None:
    with pytest.raises(BadHeader, match="X-A"):
        check_headers([("X-A", value)])


def test_ordinary_headers_are_accepted() -> None:
    check_headers(
        [("Authorization", "Bearer x"), ("Idempotency-Key", "1"), ("X-Tab", "a\tb"), ("X-Empty", "")]
    )
    check_headers([(f"X-{n}", "") for n in range(64)])


def test_the_number_and_size_of_headers_are_limited() -> None:
    with pytest.raises(BadHeader, match="64"):
        check_headers([(f"X-{n}", "") for n in range(65)])
    with pytest.raises(BadHeader, match="bytes"):
        check_headers([("X-A", "a" * 20_000)])


@given(st.text(max_size=20), st.text(max_size=40))
def test_a_line_given_to_libcurl_is_one_line(name: str, value: str) -> None:
    try:
        line = format_header_line(name, value)
    except BadHeader:
        return
    text = line if isinstance(line, str) else line.decode("latin-1")
    assert len(text.splitlines()) == 1 or set(text) & set("\x85\x1c\x1d\x1e")
    assert not set(text) & set("\r\n\0")
    assert text.startswith(name)


@pytest.mark.parametrize(
    "header",
    [
        ("X-A", "b\r\nX-Injected: c"),
        ("X-A\r\nX-Injected: c", "b"),
        ("X-A", "b\nGET / HTTP/1.1"),
        ("X-A:", "\x00"),
    ],
)
def test_the_egress_itself_sends_no_header_that_breaks_its_line(header: tuple[str, str]) -> None:
    with answering(lambda _request: hostile.OK) as server, running() as egress:
        outcome = perform(egress, build_attempt(server.url(), headers=[header]))
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.EGRESS
    assert not outcome.may_have_been_sent
    assert server.requests == []


def test_the_egress_refuses_methods_that_it_does_not_know() -> None:
    with answering(lambda _request: hostile.OK) as server, running() as egress:
        for method in ("get", "CONNECT", "TRACE", "GET / HTTP/1.1\r\nX: y", ""):
            outcome = perform(egress, build_attempt(server.url(), method))
            assert isinstance(outcome, Errored)
            assert outcome.kind is ErrorKind.EGRESS
    assert server.connections == 0


def test_a_request_body_has_a_maximum_size() -> None:
    with answering(lambda _request: hostile.OK) as server, running() as egress:
        outcome = perform(egress, build_attempt(server.url(), "POST", body=bytes(1_000_001)))
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.TOO_LARGE
    assert not outcome.may_have_been_sent
    assert server.connections == 0

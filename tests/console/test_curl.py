"""curl command lines are read as curl reads them, and written ones can be read again."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventservice.console.calls.curl import (
    MAX_COMMAND_LENGTH,
    MAX_NOTES,
    CurlRequest,
    InvalidCurl,
    format_curl,
    parse_curl,
)
from eventservice.console.calls.presenters.http_exchange import format_json
from eventservice.console.calls.shell_words import split_words
from tests.execution.hostile import answering


def read(line: str) -> tuple[str, str, list[tuple[str, str]], str | None]:
    request = parse_curl(line)
    return request.method, request.url, request.headers, request.body


FORM = ("Content-Type", "application/x-www-form-urlencoded")
JSON = ("Content-Type", "application/json")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("curl http://x.test/", ("GET", "http://x.test/", [], None)),
        ("$ curl --url http://x.test/", ("GET", "http://x.test/", [], None)),
        ("curl -XPUT http://x.test/ -HX-A:1", ("PUT", "http://x.test/", [("X-A", "1")], None)),
        ("curl --request delete 'http://x.test/'", ("DELETE", "http://x.test/", [], None)),
        ("curl -I http://x.test/", ("HEAD", "http://x.test/", [], None)),
        ("curl http://x.test/ -d a=1 -d b=2", ("POST", "http://x.test/", [FORM], "a=1&b=2")),
        ("curl http://x.test/ -da=1 -H 'content-type: text/plain'", ("POST", "http://x.test/", [("content-type", "text/plain")], "a=1")),
        ("curl http://x.test/ --data-raw '@home'", ("POST", "http://x.test/", [FORM], "@home")),
        ("curl http://x.test/ --data-binary 'a\nb'", ("POST", "http://x.test/", [FORM], "a\nb")),
        ("curl http://x.test/ --data-urlencode 'q=a b&c'", ("POST", "http://x.test/", [FORM], "q=a+b%26c")),
        ("curl http://x.test/ -X PATCH --json '{\"a\":1}'", ("PATCH", "http://x.test/", [("Accept", JSON[1]), JSON], '{"a":1}')),
        ("curl -G http://x.test/?c=3#top -d a=1 -d b=2", ("GET", "http://x.test/?c=3&a=1&b=2#top", [], None)),
        ("curl -u bob:pw http://x.test/", ("GET", "http://x.test/", [("Authorization", "Basic Ym9iOnB3")], None)),
        ("curl http://x.test/ -A me -e http://y.test -b a=1 -b b=2", ("GET", "http://x.test/", [("User-Agent", "me"), ("Referer", "http://y.test"), ("Cookie", "a=1; b=2")], None)),
        ("curl http://x.test/ -H 'X-Empty;'", ("GET", "http://x.test/", [("X-Empty", "")], None)),
        ("curl 'http://x.test/' \\\n  -H 'A: 1' \\\r\n  -H \"B: say \\\"hi\\\" for \\$5\"", ("GET", "http://x.test/", [("A", "1"), ("B", 'say "hi" for $5')], None)),
        (r"""curl http://x.test/ --data-raw $'{"a":"it\'s\n\u00e4 \xc3\xa4 \x41\101"}'""", ("POST", "http://x.test/", [FORM], '{"a":"it\'s\nä ä AA"}')),
        ("/usr/bin/curl http://x.test/ --compressed", ("GET", "http://x.test/", [], None)),
    ],
)  # fmt: skip
def test_a_command_is_read_as_curl_reads_it(line: str, expected: Any) -> None:
    assert read(line) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("curl -k http://x.test/", "-k was ignored: certificates are always verified."),
        ("curl -L http://x.test/", "-L was ignored: redirects are never followed."),
        ("curl -o file http://x.test/", "-o was ignored"),
        ("curl x.test/y", "http:// was added"),
        ("curl http://x.test/ -H 'Host: other.test'", "header Host is set by the HTTP client"),
        ("curl http://x.test/ | jq .", "Everything after | was left out."),
        (
            'curl http://x.test/ -H "Authorization: Bearer $TOKEN"',
            "Shell variables and commands are not expanded",
        ),
    ],
)
def test_notes_say_what_was_left_out(line: str, message: str) -> None:
    assert any(message in note for note in parse_curl(line).notes), parse_curl(line).notes


def test_a_dollar_in_single_quotes_is_not_a_variable() -> None:
    assert parse_curl("curl 'http://x.test/?a=$HOME'").notes == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "start with curl"),
        ("wget http://x.test/", "start with curl"),
        ("curl", "no URL"),
        ("curl http://x.test/ http://y.test/", "second URL"),
        ("curl http://x.test/ -d @body.json", "@body.json cannot be read"),
        ("curl http://x.test/ --json @body.json", "@body.json cannot be read"),
        ("curl http://x.test/ --data-urlencode name@file", "cannot be read"),
        ("curl http://x.test/ -H @headers", "cannot be read"),
        ("curl http://x.test/ -b cookies.txt", "cannot be read"),
        ("curl http://x.test/ -F a=b", "Multipart"),
        ("curl http://x.test/ -T file", "cannot be uploaded"),
        ("curl http://x.test/ -X PROPFIND", "PROPFIND"),
        ("curl http://x.test/ --wibble", "--wibble is not supported"),
        ("curl http://x.test/ -H", "no value"),
        ("curl 'http://x.test/", "quote is not closed"),
        ('curl "http://x.test/" ^\n  -H "A: 1"', "Windows"),
        ('curl ^"http://x.test/?a=1^&b=2^" ^\n  -H ^"A: ^\\^"1^\\^"^"', "Windows"),
        ('curl ^"http://x.test/^"', "Windows"),
    ],
)
def test_a_command_that_cannot_be_imported_is_refused_with_the_reason(line: str, message: str) -> None:
    with pytest.raises(InvalidCurl, match=message):
        parse_curl(line)


@pytest.mark.parametrize("text", ['^"', '"^', "^\n", "a ^", "^%^"])
def test_a_caret_inside_bash_quotes_does_not_mean_windows(text: str) -> None:
    assert parse_curl(format_curl("POST", "http://x.test/", {"X-A": f"a{text}".strip()}, text)).body == text


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=60)
names = st.sampled_from(["X-A", "X-B", "Accept", "Content-Type"])
values = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=20)


@given(
    st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS"]),
    st.text("abc'\"$`!*?&=#;|<>(){}~", max_size=20),
    st.dictionaries(names, values, max_size=3),
    st.none() | texts,
)
def test_a_written_command_is_read_as_the_same_request(
    method: str, path: str, headers: dict[str, str], body: str | None
) -> None:
    url = f"http://x.test/{path}"
    request = parse_curl(format_curl(method, url, headers, body))
    assert (request.method, request.url, dict(request.headers), request.body) == (method, url, headers, body)
    assert request.notes == []


@pytest.mark.parametrize(
    "path", ["/[1-3]?x={a,b}", "/a/../b", "/.", "/a/%2e%2E/b?c", "/a/..#x", "/plain/...?a=/../"]
)
def test_curl_requests_exactly_the_given_url(path: str) -> None:
    """Run curl itself, and look at what the server receives."""
    with answering(lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as server:
        line = format_curl("GET", server.url(path), {}, None)
        subprocess.run(["bash", "-c", f"{line} --silent"], check=True, env={"PATH": os.environ["PATH"]})
    assert [received.target for received in server.requests] == [path.partition("#")[0]]
    assert parse_curl(line).url == server.url(path)
    assert parse_curl(line).notes == []


def test_a_plain_url_needs_no_options() -> None:
    assert format_curl("GET", "http://x.test/a.b/...?c=1", {}, None) == "curl 'http://x.test/a.b/...?c=1'"


def test_a_shell_reads_a_written_command_unchanged() -> None:
    awkward = 'it\'s $HOME `id` \\ "x"\nnext !'
    line = format_curl("POST", "http://x.test/?a=1&b='", {"X-A": awkward.replace("\n", " ")}, awkward)
    script = 'curl() { for word in "$@"; do printf \'%s\\0\' "$word"; done; }\n' + line
    words = (
        subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout.decode().split("\0")
    )
    assert words[0] == "http://x.test/?a=1&b='"
    assert words[-2] == awkward


def test_a_command_copied_from_a_browser_is_imported() -> None:
    line = r"""curl 'https://shop.test/api/orders?draft=1' \
  -H 'accept: application/json' \
  -H 'accept-language: de-DE,de;q=0.9' \
  -H 'content-type: application/json' \
  -b 'session=abc; theme=dark' \
  -H 'sec-ch-ua: "Chromium";v="142", "Not_A Brand";v="99"' \
  --data-raw $'{"note":"it\'s \\"fine\\""}' \
  --insecure"""
    request = parse_curl(line)
    assert (request.method, request.url) == ("POST", "https://shop.test/api/orders?draft=1")
    assert request.body == '{"note":"it\'s \\"fine\\""}'
    assert dict(request.headers)["Cookie"] == "session=abc; theme=dark"
    assert len(request.headers) == 5


def test_no_part_of_a_command_is_executed() -> None:
    assert isinstance(parse_curl(f"curl {shlex.quote('http://x.test/$(touch /tmp/never)')}"), CurlRequest)


# --- long and hostile input ---------------------------------------------------------------------------------------


@given(st.text("ab '\"\\\n\t#|", max_size=40).filter(lambda text: "\\\n" not in text))
def test_words_are_split_as_shlex_splits_them(text: str) -> None:
    try:
        expected = shlex.split(text)
    except ValueError:
        with pytest.raises(ValueError, match="not closed"):
            split_words(text)
    else:
        assert split_words(text) == expected


def test_a_command_that_is_too_long_is_refused() -> None:
    line = "curl http://x.test/ --data-raw '"
    filled = line + "x" * (MAX_COMMAND_LENGTH - len(line) - 1) + "'"
    assert len(parse_curl(filled).body or "") > MAX_COMMAND_LENGTH - 100
    with pytest.raises(InvalidCurl, match="At most"):
        parse_curl(filled + " ")


def test_headers_and_notes_are_bounded() -> None:
    notes = parse_curl("curl http://x.test/ " + " ".join(f"-H 'b@d{n}: 1'" for n in range(1000))).notes
    assert len(notes) == MAX_NOTES
    with pytest.raises(InvalidCurl, match="more than 64 headers"):
        parse_curl("curl http://x.test/ " + " ".join(f"-H 'X-{n}: 1'" for n in range(65)))


HOSTILE = {
    "one word": "curl http://x.test/ --data-raw {}", "quotes": "curl http://x.test/ --data-raw '{}'",
    "unclosed": "curl '{}", "ansi": "curl $'{}'", "double": 'curl "{}"',
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "filling", ["x", "x ", "\\'", '\\"', "$'", '$"', "'\"", "\\\\", "$'\\", "-H 'b@d:1' ", "`", "^ "]
)
@pytest.mark.parametrize("template", HOSTILE.values(), ids=HOSTILE)
def test_the_longest_command_is_read_in_linear_time(template: str, filling: str) -> None:
    line = template.format(filling * (MAX_COMMAND_LENGTH // len(filling) - 50))
    begin = time.process_time()
    with contextlib.suppress(InvalidCurl):
        parse_curl(line)
    assert time.process_time() - begin < 15


def test_a_deep_document_is_not_indented() -> None:
    deep: Any = 0
    for _ in range(500):
        deep = [deep] * 1
    assert len(format_json(deep)) == 1001
    assert "\n" in format_json([[1]])

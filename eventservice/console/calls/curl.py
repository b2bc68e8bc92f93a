"""curl command lines: read as what people paste, and written for them to paste elsewhere."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import quote_plus

from eventservice.console.calls.shell_words import has_variables, is_for_windows, words_of
from execution.outcome import METHODS
from execution.url_rules import BadHeader, check_headers

# --- reading --------------------------------------------------------------------------------------------------


class BadCurl(ValueError):
    """What cannot be taken, in words a person can act on."""


@dataclass(slots=True)
class Pasted:
    """What a command line asks for; `notes` say what of it was left out or decided."""

    method: str = ""
    url: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: str | None = None
    timeout_seconds: str = ""
    notes: list[str] = field(default_factory=list)

    # On the way there.
    data: list[str] = field(default_factory=list)
    is_json: bool = False
    in_query: bool = False
    wants_head: bool = False
    user: str | None = None
    cookies: list[str] = field(default_factory=list)
    without: set[str] = field(default_factory=set)  # headers that curl is told not to add

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def has(self, name: str) -> bool:
        return any(name == other.lower() for other, _ in self.headers)


# Options that say nothing about the request itself. The first take a value.
IGNORED_WITH_VALUE = frozenset({
    "output", "proxy", "proxy-user", "write-out", "connect-timeout", "retry", "retry-delay", "retry-max-time",
    "cacert", "capath", "cert", "key", "resolve", "limit-rate", "cookie-jar", "dump-header", "interface",
    "max-redirs", "ciphers", "tls-max", "range", "continue-at", "speed-limit", "speed-time", "cert-type",
    "key-type", "pass", "noproxy", "connect-to", "dns-servers", "keepalive-time", "stderr", "trace",
    "trace-ascii", "unix-socket", "local-port", "socks5", "socks5-hostname", "max-filesize",
})  # fmt: skip
IGNORED = frozenset({
    "insecure", "location", "location-trusted", "silent", "show-error", "verbose", "include", "fail",
    "fail-with-body", "fail-early", "remote-name", "remote-header-name", "remote-time", "http1.0", "http1.1",
    "http2", "http2-prior-knowledge", "http3", "no-buffer", "ipv4", "ipv6", "no-progress-meter", "progress-bar",
    "tlsv1", "tlsv1.0", "tlsv1.1", "tlsv1.2", "tlsv1.3", "ssl-reqd", "create-dirs", "tcp-nodelay",
    "tcp-fastopen", "no-keepalive", "no-sessionid", "post301", "post302", "post303", "raw", "netrc", "disable",
    "retry-connrefused", "retry-all-errors", "basic", "junk-session-cookies", "parallel", "trace-time",
    "styled-output",
})  # fmt: skip
REFUSED = {
    "form": "A multipart form (-F) cannot be sent: give the body as text with --data-raw.",
    "form-string": "A multipart form cannot be sent: give the body as text with --data-raw.",
    "upload-file": "A file (-T) cannot be uploaded: give its text with --data-raw.",
    "config": "A file with options (-K) cannot be read here: paste the options themselves.",
    "next": "Only one request can be taken: leave out --next and what follows it.",
    "digest": "Digest authentication is not spoken here.",
    "ntlm": "NTLM authentication is not spoken here.",
    "negotiate": "Negotiate authentication is not spoken here.",
}
SHORT = {
    "X": "request", "H": "header", "d": "data", "u": "user", "A": "user-agent", "e": "referer", "b": "cookie",
    "I": "head", "G": "get", "m": "max-time", "F": "form", "T": "upload-file", "K": "config", "o": "output",
    "x": "proxy", "U": "proxy-user", "w": "write-out", "c": "cookie-jar", "D": "dump-header", "E": "cert",
    "r": "range", "C": "continue-at", "Y": "speed-limit", "y": "speed-time", "k": "insecure", "L": "location",
    "s": "silent", "S": "show-error", "v": "verbose", "i": "include", "f": "fail", "O": "remote-name",
    "J": "remote-header-name", "R": "remote-time", "0": "http1.0", "1": "tlsv1", "4": "ipv4", "6": "ipv6",
    "g": "globoff", "N": "no-buffer", "#": "progress-bar", "n": "netrc", "q": "disable", "Z": "parallel",
    "j": "junk-session-cookies", ":": "next",
}  # fmt: skip
SHELL = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1", "|&"})


def parse_curl(text: str) -> Pasted:
    """Raises BadCurl."""
    pasted = Pasted()
    words = iter(_words(text, pasted))
    for word in words:
        if word in SHELL or re.fullmatch(r"[12&]?>{1,2}\S*", word):
            pasted.note(f"What follows {word} is left out.")
            break
        _take(word, words, pasted)
    return _finished(pasted)


def _take(word: str, words: Iterator[str], pasted: Pasted) -> None:
    if word.startswith("--") and len(word) > 2:
        _apply(word[2:], word, lambda: _value(word, words), pasted)
    elif word.startswith("-") and len(word) > 1:
        _take_short(word, words, pasted)
    elif pasted.url:
        raise BadCurl(
            f"There is a second URL, {word[:80]!r}: only one request can be taken. Is a quote missing?"
        )
    else:
        pasted.url = word


def _take_short(word: str, words: Iterator[str], pasted: Pasted) -> None:
    """-sSL is three options; what follows one that takes a value is its value, as in -XPOST."""
    for place, letter in enumerate(word[1:], 2):
        name = SHORT.get(letter)
        if name is None:
            raise BadCurl(f"The option -{letter} is not known here: take it out.")
        if takes_value(name):
            _apply(name, f"-{letter}", partial(_rest_or_value, word, place, words), pasted)
            return
        _apply(name, f"-{letter}", str, pasted)


def _rest_or_value(word: str, place: int, words: Iterator[str]) -> str:
    return word[place:] or _value(word, words)


def takes_value(name: str) -> bool:
    return name in _VALUED or name in IGNORED_WITH_VALUE or name in REFUSED


def _value(option: str, words: Iterator[str]) -> str:
    value = next(words, None)
    if value is None:
        raise BadCurl(f"The option {option} has no value.")
    return value


def _apply(name: str, said: str, value: Callable[[], str], pasted: Pasted) -> None:
    if name in REFUSED:
        raise BadCurl(REFUSED[name])
    if name in _VALUED:
        _VALUED[name](pasted, value())
    elif name in _FLAGS:
        _FLAGS[name](pasted)
    elif name in IGNORED_WITH_VALUE:
        value()
        pasted.note(f"{said} is ignored: it says nothing about the request.")
    elif name in IGNORED:
        pasted.note(f"{said} is ignored: {_why_ignored(name)}.")
    else:
        raise BadCurl(f"The option {said[:60]} is not known here: take it out.")


def _why_ignored(name: str) -> str:
    match name:
        case "insecure":
            return "certificates are always checked"
        case "location" | "location-trusted":
            return "redirects are never followed"
        case _:
            return "it says nothing about the request"


# --- single options -------------------------------------------------------------------------------------------


def _header(pasted: Pasted, value: str) -> None:
    if value.startswith("@"):
        raise BadCurl(f"Headers of a file ({value[:60]}) cannot be read here: give them with -H.")
    name, colon, text = value.partition(":")
    if not colon and value.endswith(";"):
        name, text = value[:-1], ""
    elif not text.strip():
        pasted.without.add(name.strip().lower())
        return
    _add_header(pasted, name.strip(), text.strip())


def _add_header(pasted: Pasted, name: str, value: str) -> None:
    try:
        check_headers([(name, "")])
    except BadHeader as wrong:
        pasted.note(f"A header is left out: {wrong}.")
        return
    pasted.headers.append((name, value))


def _data(pasted: Pasted, value: str) -> None:
    if value.startswith("@"):
        raise BadCurl(f"The file {value[:80]} cannot be read here: paste its text into the body.")
    pasted.data.append(value)


def _urlencoded(pasted: Pasted, value: str) -> None:
    name, equals, content = value.partition("=")
    if "@" in name or (not equals and "@" in value):
        raise BadCurl(f"The file of --data-urlencode {value[:80]} cannot be read here: paste its text.")
    if not equals:
        name, content = "", value
    pasted.data.append(f"{name}={quote_plus(content)}" if name else quote_plus(content))


def _json(pasted: Pasted, value: str) -> None:
    _data(pasted, value)
    pasted.is_json = True


def _request(pasted: Pasted, value: str) -> None:
    method = value.strip().upper()
    if method not in METHODS:
        raise BadCurl(f"The method {value[:40]!r} cannot be sent: it must be one of {', '.join(METHODS)}.")
    pasted.method = method


def _cookie(pasted: Pasted, value: str) -> None:
    if "=" not in value:
        raise BadCurl(f"The cookies of the file {value[:80]!r} cannot be read here: give them as name=value.")
    pasted.cookies.append(value)


def _url(pasted: Pasted, value: str) -> None:
    if pasted.url:
        raise BadCurl("There are two URLs: only one request can be taken.")
    pasted.url = value


def _max_time(pasted: Pasted, value: str) -> None:
    pasted.timeout_seconds = value


def _user(pasted: Pasted, value: str) -> None:
    pasted.user = value


def _head(pasted: Pasted) -> None:
    pasted.wants_head = True


def _get(pasted: Pasted) -> None:
    pasted.in_query = True


def _nothing(pasted: Pasted) -> None:
    """What is always so here: nothing asks for compression, and a URL is sent as it is written."""


_VALUED: Mapping[str, Callable[[Pasted, str], None]] = {
    "request": _request,
    "header": _header,
    "data": _data,
    "data-ascii": _data,
    "data-binary": _data,
    "data-raw": lambda pasted, value: pasted.data.append(value),
    "data-urlencode": _urlencoded,
    "json": _json,
    "url": _url,
    "user": _user,
    "oauth2-bearer": lambda pasted, value: _add_header(pasted, "Authorization", f"Bearer {value}"),
    "user-agent": lambda pasted, value: _add_header(pasted, "User-Agent", value),
    "referer": lambda pasted, value: _add_header(pasted, "Referer", value),
    "cookie": _cookie,
    "max-time": _max_time,
}
_FLAGS: Mapping[str, Callable[[Pasted], None]] = {
    "head": _head,
    "get": _get,
    "compressed": _nothing,
    "globoff": _nothing,
    "path-as-is": _nothing,
}


# --- the whole ------------------------------------------------------------------------------------------------


def _finished(pasted: Pasted) -> Pasted:
    if not pasted.url:
        raise BadCurl("There is no URL.")
    if "://" not in pasted.url:
        pasted.note("The URL had no scheme: http:// was taken, as curl does.")
        pasted.url = f"http://{pasted.url}"
    _finish_data(pasted)
    if pasted.user is not None and not pasted.has("authorization"):
        user = pasted.user if ":" in pasted.user else f"{pasted.user}:"
        token = base64.b64encode(user.encode()).decode()
        pasted.headers.append(("Authorization", f"Basic {token}"))
    if pasted.cookies and not pasted.has("cookie"):
        pasted.headers.append(("Cookie", "; ".join(pasted.cookies)))
    return pasted


def _finish_data(pasted: Pasted) -> None:
    data = ("" if pasted.is_json else "&").join(pasted.data) if pasted.data else None
    if pasted.in_query and data is not None:
        base, hash_, fragment = pasted.url.partition("#")
        pasted.url = f"{base}{'&' if '?' in base else '?'}{data}{hash_}{fragment}"
        data = None
    usual = "HEAD" if pasted.wants_head else "GET" if data is None else "POST"
    pasted.method = pasted.method or usual
    pasted.body = data
    if data is None:
        return
    kind = "application/json" if pasted.is_json else "application/x-www-form-urlencoded"
    for name, value in (("Accept", kind), ("Content-Type", kind)):
        wanted = name != "Accept" or pasted.is_json
        if wanted and not pasted.has(name.lower()) and name.lower() not in pasted.without:
            pasted.headers.append((name, value))


def _words(text: str, pasted: Pasted) -> list[str]:
    text = text.strip().removeprefix("$ ")
    if is_for_windows(text):
        raise BadCurl("This was copied for Windows' cmd: copy it as cURL for bash.")
    if has_variables(text):
        pasted.note(
            "Variables and commands of the shell are not carried out: they stand as they are written."
        )
    try:
        words = words_of(text)
    except ValueError:
        raise BadCurl("A quote is not closed.") from None
    if not words or words[0].rsplit("/", 1)[-1].removesuffix(".exe") != "curl":
        raise BadCurl("A command line that begins with curl is needed.")
    return words[1:]


# --- writing --------------------------------------------------------------------------------------------------


def write_curl(method: str, url: str, headers: Mapping[str, str], body: str | None) -> str:
    """For bash, an option a line. What the headers hide stays hidden."""
    options = _method_options(method, body)
    options += [f"-H {shlex.quote(_header_option(name, value))}" for name, value in headers.items()]
    if body is not None:
        if not any(name.lower() == "content-type" for name in headers):
            options.append("-H 'Content-Type:'")  # curl would add one
        options.append(f"--data-raw {shlex.quote(body)}")
    return " \\\n  ".join([f"curl {_as_it_is(url)}{shlex.quote(url)}", *options])


def _as_it_is(url: str) -> str:
    """curl would make several URLs of one with brackets or braces, and tidy a path with dot segments."""
    globoff = "--globoff " if set("[]{}") & set(url) else ""
    return globoff + ("--path-as-is " if _DOT_SEGMENT.search(url) else "")


_DOT_SEGMENT = re.compile(r"/(?:\.|%2e){1,2}(?:[/?#]|$)", re.IGNORECASE)


def _method_options(method: str, body: str | None) -> list[str]:
    if method == "HEAD" and body is None:
        return ["--head"]
    usual = "GET" if body is None else "POST"
    return [] if method == usual else [f"-X {method}"]


def _header_option(name: str, value: str) -> str:
    return f"{name}: {value}" if value.strip() else f"{name};"


__all__ = ["BadCurl", "Pasted", "parse_curl", "write_curl"]

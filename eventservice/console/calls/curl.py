"""Conversion between curl command lines and HTTP requests, for importing a request and for exporting one."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import quote_plus

from django.conf import settings

from eventservice.console.calls.shell_words import has_expansions, is_windows_command, split_words
from eventservice.kernel.text import end_sentence
from execution.outcome import METHODS
from execution.url_rules import MAX_HEADERS, BadHeader, check_headers

# Enough for the largest body of a call with its escapes, and more headers and notes than anybody reads.
MAX_COMMAND_LENGTH = settings.API_MAX_REQUEST_BYTES
MAX_NOTES = 20


class InvalidCurl(ValueError):
    """A command line that cannot be imported. The message tells the operator what to change."""


@dataclass(slots=True)
class CurlRequest:
    """The request that a command line makes. `notes` say what was ignored or assumed."""

    method: str = ""
    url: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: str | None = None
    timeout_seconds: str = ""
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        if len(self.notes) < MAX_NOTES and text not in self.notes:
            self.notes.append(text)

    def has_header(self, name: str) -> bool:
        return any(name == other.lower() for other, _ in self.headers)


# --- options ------------------------------------------------------------------------------------------------------

# Options that do not change the request.
_IGNORED_WITH_VALUE = frozenset({
    "output", "proxy", "proxy-user", "write-out", "connect-timeout", "retry", "retry-delay", "retry-max-time",
    "cacert", "capath", "cert", "key", "resolve", "limit-rate", "cookie-jar", "dump-header", "interface",
    "max-redirs", "ciphers", "tls-max", "range", "continue-at", "speed-limit", "speed-time", "cert-type",
    "key-type", "pass", "noproxy", "connect-to", "dns-servers", "keepalive-time", "stderr", "trace",
    "trace-ascii", "unix-socket", "local-port", "socks5", "socks5-hostname", "max-filesize",
})  # fmt: skip
_IGNORED_FLAGS = frozenset({
    "insecure", "location", "location-trusted", "silent", "show-error", "verbose", "include", "fail",
    "fail-with-body", "fail-early", "remote-name", "remote-header-name", "remote-time", "http1.0", "http1.1",
    "http2", "http2-prior-knowledge", "http3", "no-buffer", "ipv4", "ipv6", "no-progress-meter", "progress-bar",
    "tlsv1", "tlsv1.0", "tlsv1.1", "tlsv1.2", "tlsv1.3", "ssl-reqd", "create-dirs", "tcp-nodelay",
    "tcp-fastopen", "no-keepalive", "no-sessionid", "post301", "post302", "post303", "raw", "netrc", "disable",
    "retry-connrefused", "retry-all-errors", "basic", "junk-session-cookies", "parallel", "trace-time",
    "styled-output",
})  # fmt: skip
_REFUSED = {
    "form": "Multipart forms (-F) are not supported. Give the body as text with --data-raw.",
    "form-string": "Multipart forms are not supported. Give the body as text with --data-raw.",
    "upload-file": "Files (-T) cannot be uploaded. Give the content with --data-raw.",
    "config": "Option files (-K) cannot be read. Paste the options themselves.",
    "next": "Only one request can be imported. Remove --next and everything after it.",
    "digest": "Digest authentication is not supported.",
    "ntlm": "NTLM authentication is not supported.",
    "negotiate": "Negotiate authentication is not supported.",
}
_LONG_NAMES = {
    "X": "request", "H": "header", "d": "data", "u": "user", "A": "user-agent", "e": "referer", "b": "cookie",
    "I": "head", "G": "get", "m": "max-time", "F": "form", "T": "upload-file", "K": "config", "o": "output",
    "x": "proxy", "U": "proxy-user", "w": "write-out", "c": "cookie-jar", "D": "dump-header", "E": "cert",
    "r": "range", "C": "continue-at", "Y": "speed-limit", "y": "speed-time", "k": "insecure", "L": "location",
    "s": "silent", "S": "show-error", "v": "verbose", "i": "include", "f": "fail", "O": "remote-name",
    "J": "remote-header-name", "R": "remote-time", "0": "http1.0", "1": "tlsv1", "4": "ipv4", "6": "ipv6",
    "g": "globoff", "N": "no-buffer", "#": "progress-bar", "n": "netrc", "q": "disable", "Z": "parallel",
    "j": "junk-session-cookies", ":": "next",
}  # fmt: skip
_SHELL_OPERATORS = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1", "|&"})
_REDIRECTION = re.compile(r"[12&]?>{1,2}\S*")


# --- reading ------------------------------------------------------------------------------------------------------


def parse_curl(text: str) -> CurlRequest:
    """Return the request that a curl command line makes. Raise InvalidCurl if it cannot be imported."""
    if len(text) > MAX_COMMAND_LENGTH:
        raise InvalidCurl(
            f"The command has {len(text):,} characters. At most {MAX_COMMAND_LENGTH:,} can be imported."
        )
    return _CurlParser(text).parse()


class _CurlParser:
    def __init__(self, text: str) -> None:
        self.request = CurlRequest()
        self._words = iter(self._split(text))
        self._data: list[str] = []
        self._cookies: list[str] = []
        self._user: str | None = None
        self._suppressed_headers: set[str] = set()  # by "-H Name:"
        self._is_json = self._is_head = self._data_in_query = False

    def parse(self) -> CurlRequest:
        for word in self._words:
            if word in _SHELL_OPERATORS or _REDIRECTION.fullmatch(word):
                self.request.note(f"Everything after {word} was left out.")
                break
            self._read_word(word)
        self._finish_url()
        self._finish_data()
        self._finish_credentials()
        return self.request

    def _split(self, text: str) -> list[str]:
        text = text.strip().removeprefix("$ ")
        if is_windows_command(text):
            raise InvalidCurl("This is a command for the Windows prompt. Copy it as cURL (bash) instead.")
        if has_expansions(text):
            self.request.note("Shell variables and commands are not expanded; they are kept as written.")
        try:
            words = split_words(text)
        except ValueError:
            raise InvalidCurl("A quote is not closed.") from None
        if not words or words[0].rsplit("/", 1)[-1].removesuffix(".exe") != "curl":
            raise InvalidCurl("The command line must start with curl.")
        return words[1:]

    def _read_word(self, word: str) -> None:
        if word.startswith("--") and len(word) > 2:
            self._apply(word[2:], word, partial(self._next_value, word))
        elif word.startswith("-") and len(word) > 1:
            self._read_short_options(word)
        elif self.request.url:
            raise InvalidCurl(
                f"There is a second URL, {word[:80]!r}. Only one request can be imported. Is a quote missing?"
            )
        else:
            self.request.url = word

    def _read_short_options(self, word: str) -> None:
        """Read a group of short options. -sSL is three options, and -XPOST is -X with its value."""
        for end, letter in enumerate(word[1:], 2):
            name = _LONG_NAMES.get(letter)
            if name is None:
                raise InvalidCurl(f"The option -{letter} is not supported. Remove it.")
            if _takes_value(name):
                self._apply(name, f"-{letter}", partial(self._rest_or_next_value, word, end))
                return
            self._apply(name, f"-{letter}", str)

    def _rest_or_next_value(self, word: str, end: int) -> str:
        return word[end:] or self._next_value(word)

    def _next_value(self, option: str) -> str:
        value = next(self._words, None)
        if value is None:
            raise InvalidCurl(f"The option {option} has no value.")
        return value

    def _apply(self, name: str, option: str, read_value: Callable[[], str]) -> None:
        """Apply one option. `option` is its spelling in the command line."""
        if name in _REFUSED:
            raise InvalidCurl(_REFUSED[name])
        if name in _VALUE_OPTIONS:
            _VALUE_OPTIONS[name](self, read_value())
        elif name in _FLAGS:
            _FLAGS[name](self)
        elif name in _IGNORED_WITH_VALUE:
            read_value()
            self.request.note(f"{option} was ignored: it does not change the request.")
        elif name in _IGNORED_FLAGS:
            self.request.note(f"{option} was ignored: {_explain_ignored(name)}.")
        else:
            raise InvalidCurl(f"The option {option[:60]} is not supported. Remove it.")

    # --- single options -------------------------------------------------------------------------------------------

    def set_header(self, value: str) -> None:
        if value.startswith("@"):
            raise InvalidCurl(f"Header files ({value[:60]}) cannot be read. Give each header with -H.")
        name, colon, text = value.partition(":")
        if not colon and value.endswith(";"):
            name, text = value[:-1], ""
        elif not text.strip():
            self._suppressed_headers.add(name.strip().lower())
            return
        self._add_header(name.strip(), text.strip())

    def _add_header(self, name: str, value: str) -> None:
        try:
            check_headers([(name, "")])
        except BadHeader as error:
            self.request.note(end_sentence(f"A header was left out: {error}"))
            return
        if len(self.request.headers) == MAX_HEADERS:
            raise InvalidCurl(f"There are more than {MAX_HEADERS} headers.")
        self.request.headers.append((name, value))

    def add_raw_data(self, value: str) -> None:
        self._data.append(value)

    def add_data(self, value: str) -> None:
        if value.startswith("@"):
            raise InvalidCurl(f"The file {value[:80]} cannot be read. Paste its content into the body.")
        self._data.append(value)

    def add_urlencoded_data(self, value: str) -> None:
        name, equals, content = value.partition("=")
        if "@" in name or (not equals and "@" in value):
            raise InvalidCurl(f"The file in --data-urlencode {value[:80]} cannot be read. Paste its content.")
        if not equals:
            name, content = "", value
        self._data.append(f"{name}={quote_plus(content)}" if name else quote_plus(content))

    def add_json(self, value: str) -> None:
        self.add_data(value)
        self._is_json = True

    def set_method(self, value: str) -> None:
        method = value.strip().upper()
        if method not in METHODS:
            raise InvalidCurl(f"The method {value[:40]!r} is not supported. Use one of {', '.join(METHODS)}.")
        self.request.method = method

    def add_cookie(self, value: str) -> None:
        if "=" not in value:
            raise InvalidCurl(f"The cookie file {value[:80]!r} cannot be read. Give cookies as name=value.")
        self._cookies.append(value)

    def set_url(self, value: str) -> None:
        if self.request.url:
            raise InvalidCurl("There are two URLs. Only one request can be imported.")
        self.request.url = value

    def set_timeout(self, value: str) -> None:
        self.request.timeout_seconds = value

    def set_user(self, value: str) -> None:
        self._user = value

    def set_bearer_token(self, value: str) -> None:
        self._add_header("Authorization", f"Bearer {value}")

    def set_user_agent(self, value: str) -> None:
        self._add_header("User-Agent", value)

    def set_referer(self, value: str) -> None:
        self._add_header("Referer", value)

    def use_head(self) -> None:
        self._is_head = True

    def move_data_to_query(self) -> None:
        self._data_in_query = True

    def keep_default(self) -> None:
        """Do nothing: the option asks for what this service always does."""

    # --- the whole request ----------------------------------------------------------------------------------------

    def _finish_url(self) -> None:
        if not self.request.url:
            raise InvalidCurl("There is no URL.")
        if "://" not in self.request.url:
            self.request.note("The URL has no scheme; http:// was added, as curl does.")
            self.request.url = f"http://{self.request.url}"

    def _finish_data(self) -> None:
        request = self.request
        data = ("" if self._is_json else "&").join(self._data) if self._data else None
        if self._data_in_query and data is not None:
            base, hash_, fragment = request.url.partition("#")
            request.url = f"{base}{'&' if '?' in base else '?'}{data}{hash_}{fragment}"
            data = None
        default_method = "HEAD" if self._is_head else "GET" if data is None else "POST"
        request.method = request.method or default_method
        request.body = data
        if data is not None:
            if self._is_json:
                self._add_default_header("Accept", "application/json")
            media_type = "application/json" if self._is_json else "application/x-www-form-urlencoded"
            self._add_default_header("Content-Type", media_type)

    def _add_default_header(self, name: str, value: str) -> None:
        if not self.request.has_header(name.lower()) and name.lower() not in self._suppressed_headers:
            self.request.headers.append((name, value))

    def _finish_credentials(self) -> None:
        request = self.request
        if self._user is not None and not request.has_header("authorization"):
            user = self._user if ":" in self._user else f"{self._user}:"
            token = base64.b64encode(user.encode()).decode()
            request.headers.append(("Authorization", f"Basic {token}"))
        if self._cookies and not request.has_header("cookie"):
            request.headers.append(("Cookie", "; ".join(self._cookies)))


def _takes_value(name: str) -> bool:
    return name in _VALUE_OPTIONS or name in _IGNORED_WITH_VALUE or name in _REFUSED


def _explain_ignored(name: str) -> str:
    match name:
        case "insecure":
            return "certificates are always verified"
        case "location" | "location-trusted":
            return "redirects are never followed"
        case _:
            return "it does not change the request"


_VALUE_OPTIONS: Mapping[str, Callable[[_CurlParser, str], None]] = {
    "request": _CurlParser.set_method,
    "header": _CurlParser.set_header,
    "data": _CurlParser.add_data,
    "data-ascii": _CurlParser.add_data,
    "data-binary": _CurlParser.add_data,
    "data-raw": _CurlParser.add_raw_data,
    "data-urlencode": _CurlParser.add_urlencoded_data,
    "json": _CurlParser.add_json,
    "url": _CurlParser.set_url,
    "user": _CurlParser.set_user,
    "oauth2-bearer": _CurlParser.set_bearer_token,
    "user-agent": _CurlParser.set_user_agent,
    "referer": _CurlParser.set_referer,
    "cookie": _CurlParser.add_cookie,
    "max-time": _CurlParser.set_timeout,
}
_FLAGS: Mapping[str, Callable[[_CurlParser], None]] = {
    "head": _CurlParser.use_head,
    "get": _CurlParser.move_data_to_query,
    "compressed": _CurlParser.keep_default,
    "globoff": _CurlParser.keep_default,
    "path-as-is": _CurlParser.keep_default,
}


# --- writing ------------------------------------------------------------------------------------------------------

_DOT_SEGMENT = re.compile(r"/(?:\.|%2e){1,2}(?:[/?#]|$)", re.IGNORECASE)


def format_curl(
    method: str, url: str, headers: Mapping[str, str], body: str | None, *, body_file: str = ""
) -> str:
    """Return a command line for bash with one option per line. `body_file` stands in for a body that is too long."""
    options = _format_method(method, has_body=body is not None)
    options += [f"-H {shlex.quote(_format_header(name, value))}" for name, value in headers.items()]
    if body is not None:
        if not any(name.lower() == "content-type" for name in headers):
            options.append("-H 'Content-Type:'")  # curl would add one
        options.append(f"--data-binary @{body_file}" if body_file else f"--data-raw {shlex.quote(body)}")
    return " \\\n  ".join([f"curl {_format_url_options(url)}{shlex.quote(url)}", *options])


def _format_url_options(url: str) -> str:
    """Return the options that keep curl from expanding brackets and braces, and from removing dot segments."""
    globoff = "--globoff " if set("[]{}") & set(url) else ""
    return globoff + ("--path-as-is " if _DOT_SEGMENT.search(url) else "")


def _format_method(method: str, *, has_body: bool) -> list[str]:
    if method == "HEAD" and not has_body:
        return ["--head"]
    default = "POST" if has_body else "GET"
    return [] if method == default else [f"-X {method}"]


def _format_header(name: str, value: str) -> str:
    return f"{name}: {value}" if value.strip() else f"{name};"

"""The items of `PUBLISHERS`: publishers by their names, and for each broker the URL with its options.

Settings import this module, so it imports nothing of Django and no client library.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

LOG, WEBHOOK = "log", "webhook"
# The packages of outbox.publishers that publish to a broker, by the schemes of their URLs.
BROKERS = {
    "redis": "redis",
    "rediss": "redis",
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "nats": "nats",
    "nats+tls": "nats",
    "kafka": "kafka",
    "kafka+tls": "kafka",
}
# The Python package that each of them needs, as it is imported.
LIBRARIES = {"redis": "redis", "rabbitmq": "aiormq", "nats": "nats", "kafka": "confluent_kafka"}

NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
MIN_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS = 0.1, 60.0


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """The address of a broker, with the options of publishing to it. Its representation contains no secret."""

    scheme: str
    host: str
    port: int | None
    path: str
    username: str | None = field(repr=False)
    password: str | None = field(repr=False)
    options: Mapping[str, str] = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> BrokerUrl:
        """Parse a URL. Raise ValueError, without quoting it, for one that cannot be used: it may contain a password."""
        try:
            parts = urlsplit(url)
        except ValueError:
            raise ValueError("the URL cannot be read") from None
        if parts.scheme not in BROKERS:
            raise ValueError(f"the scheme {parts.scheme!r} is not one of {', '.join(BROKERS)}")
        try:
            port = parts.port
        except ValueError:
            raise ValueError("the port is not a number between 0 and 65535") from None
        if not parts.hostname:
            raise ValueError("the URL has no host")
        if parts.fragment:
            raise ValueError("the URL has a fragment (#…): write # as %23")
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        if len(dict(pairs)) < len(pairs):
            raise ValueError("an option is given twice")
        username, password = (
            None if part is None else unquote(part) for part in (parts.username, parts.password)
        )
        return cls(
            parts.scheme, parts.hostname, port, unquote(parts.path), username or None, password, dict(pairs)
        )

    @property
    def publisher(self) -> str:
        """The package of outbox.publishers that publishes there."""
        return BROKERS[self.scheme]


@dataclass(frozen=True, slots=True)
class PublisherSpec:
    """One item of `PUBLISHERS`: `log` or `webhook`, or a name that the operator chose and a broker's URL."""

    name: str
    url: BrokerUrl | None = None

    @classmethod
    def parse(cls, item: str) -> PublisherSpec:
        """Parse `name` or `name=url`. Raise ValueError, without quoting the URL, if it is neither."""
        if item in (LOG, WEBHOOK):
            return cls(item)
        name, separator, url = item.partition("=")
        if not separator:
            # A comma in a password, which must be written as %2C, makes an item of the rest of the URL.
            shown = repr(name) if NAME.fullmatch(name) else "an item"
            raise ValueError(f"{shown} is not one of {LOG}, {WEBHOOK}, or name=url")
        if not NAME.fullmatch(name) or name in (LOG, WEBHOOK):
            raise ValueError(
                f"a name has up to 32 lowercase letters, digits, - and _, begins with a letter, and is not {LOG} or {WEBHOOK}"
            )
        try:
            return cls(name, BrokerUrl.parse(url))
        except ValueError as problem:
            raise ValueError(f"{name}: {problem}") from None


def check_names(specs: Sequence[PublisherSpec]) -> None:
    """Raise ValueError if two publishers have the same name."""
    names = [spec.name for spec in specs]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two publishers are called {', '.join(sorted(repeated))}")


def list_names(specs: Sequence[PublisherSpec]) -> list[str]:
    """Return the names of all publishers that get the events, sorted. Webhooks need not be specified."""
    return sorted({WEBHOOK, *(spec.name for spec in specs)})


@dataclass(frozen=True, slots=True)
class Tls:
    """The files of a TLS connection: who may have signed the server's certificate, and the certificate of this client."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def build_context(self) -> ssl.SSLContext:
        """Read the files. The context verifies the server's certificate and its host name."""
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert:
            context.load_cert_chain(self.cert, self.key)
        return context


class Options:
    """Reads the options of a URL, each within its bounds. `check` refuses those that nobody has read."""

    def __init__(self, url: BrokerUrl) -> None:
        self._options = dict(url.options)

    def string(self, name: str, default: str) -> str:
        return self._options.pop(name, "") or default

    def integer(self, name: str, default: int, *, minimum: int, maximum: int) -> int:
        raw = self._options.pop(name, "") or str(default)
        if not raw.isascii() or not raw.isdigit() or not minimum <= int(raw) <= maximum:
            raise ValueError(f"the option {name} must be an integer between {minimum} and {maximum}")
        return int(raw)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of the choices, by default the first."""
        value = self._options.pop(name, "") or choices[0]
        if value not in choices:
            raise ValueError(f"the option {name} must be one of {', '.join(choices)}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        raw = self._options.pop(name, "") or str(default).lower()
        if raw not in BOOLEANS:
            raise ValueError(f"the option {name} must be true or false")
        return BOOLEANS[raw]

    def timeout(self, default: float = 5.0) -> float:
        """Return how many seconds the broker has to accept what it is sent."""
        try:
            seconds = float(self._options.pop("timeout", "") or default)
        except ValueError:
            seconds = 0.0
        if not MIN_TIMEOUT_SECONDS <= seconds <= MAX_TIMEOUT_SECONDS:
            raise ValueError(
                f"the option timeout must be a number of seconds between {MIN_TIMEOUT_SECONDS} and {MAX_TIMEOUT_SECONDS}"
            )
        return seconds

    def tls(self) -> Tls:
        files = [self._options.pop(name, "") or None for name in ("ca", "cert", "key")]
        for file in files:
            if file and not Path(file).is_file():
                raise ValueError(f"the file {file!r} does not exist")
        if (files[1] is None) != (files[2] is None):
            raise ValueError("the options cert and key belong together")
        return Tls(*files)

    def check(self) -> None:
        """Raise ValueError if options are left that the publisher does not know."""
        if self._options:
            raise ValueError(f"unknown option {', '.join(sorted(self._options))}")

"""A database in DATABASE_URL and in Django's DATABASES. Settings import this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Required, TypedDict
from urllib.parse import SplitResult, parse_qsl, unquote


class DatabaseSettings(TypedDict, total=False):
    """An entry of Django's DATABASES, as far as this project sets it."""

    ENGINE: Required[str]
    NAME: Required[str]
    USER: str
    PASSWORD: str
    HOST: str
    PORT: str
    OPTIONS: dict[str, str | int]
    CONN_MAX_AGE: int | None
    CONN_HEALTH_CHECKS: bool
    TEST: dict[str, str]


@dataclass(frozen=True, slots=True)
class Waits:
    """How long this service and a database server wait for each other (docs/waits.md)."""

    connect_seconds: int
    lock_seconds: int
    statement_seconds: int
    # The server ends the transaction of a client that is silent for longer, so that a frozen process keeps no locks.
    idle_transaction_seconds: int

    @property
    def answer_seconds(self) -> int:
        """How long the server may be silent while an answer is awaited. Its own limits end a statement before."""
        return self.statement_seconds + ANSWER_MARGIN_SECONDS


# What to do about a URL that is read in another way than it was meant.
ENCODING = (
    "special characters of user and password must be %-encoded (@ as %40, / as %2F, # as %23, ? as %3F)"
)
# What an answer may take beyond the statement's time limit.
ANSWER_MARGIN_SECONDS = 2
# Probes of an idle connection. They find a dead server, and keep firewalls from forgetting the connection.
KEEPALIVE_IDLE_SECONDS = 3
KEEPALIVE_INTERVAL_SECONDS = 1
KEEPALIVE_COUNT = 3
KEEPALIVE_SECONDS = KEEPALIVE_IDLE_SECONDS + KEEPALIVE_INTERVAL_SECONDS * KEEPALIVE_COUNT
# How long sent bytes may remain unacknowledged. The kernel of a server that works acknowledges at once.
UNACKNOWLEDGED_SECONDS = KEEPALIVE_SECONDS


class DatabaseConfiguration(ABC):
    """One database's schemes and settings."""

    engine: str
    schemes: tuple[str, ...]
    # The default of ENGINE_POLL_SECONDS. A server tells nobody of new rows, so it is asked often.
    poll_seconds = 0.1

    @abstractmethod
    def parse_url(self, url: SplitResult) -> DatabaseSettings:
        """Return the entry of DATABASES for this URL. Raise ValueError, without quoting the URL, if it is wrong."""

    @abstractmethod
    def configure(self, database: DatabaseSettings, waits: Waits) -> None:
        """Add the options of a session to the entry."""


class ServerConfiguration(DatabaseConfiguration):
    """A database server, as opposed to a file."""

    # The driver's options that follow from the settings, and that a URL must not set.
    wait_options: frozenset[str]

    def parse_url(self, url: SplitResult) -> DatabaseSettings:
        # A password that is not encoded would be split, and a part of it become the host or the name of the database.
        if url.netloc.count("@") > 1:
            raise ValueError(f"has more than one @ before its host: {ENCODING}")
        if any(character in url.path.strip("/") for character in "@/"):
            raise ValueError(f"has an @ or / in the name of the database: {ENCODING}")
        name = unquote(url.path).strip("/")
        if not name:
            raise ValueError(f"names no database: expected {url.scheme}://user:password@host:port/name")
        options: dict[str, str | int] = dict(parse_qsl(url.query))
        if own := sorted(self.wait_options & options.keys()):
            raise ValueError(
                f"sets {', '.join(own)}: set DB_CONNECT_SECONDS or DB_STATEMENT_SECONDS instead (docs/waits.md)"
            )
        self._check_options(list(options))
        return {
            "ENGINE": self.engine,
            "NAME": name,
            "USER": unquote(url.username or ""),
            "PASSWORD": unquote(url.password or ""),
            "HOST": url.hostname or "",
            "PORT": str(url.port or ""),
            "OPTIONS": options,
        }

    @abstractmethod
    def list_options(self) -> Collection[str]:
        """Return the names of the options that a URL can have. Raise ImportError if the driver is not installed."""

    def _check_options(self, names: Sequence[str]) -> None:
        """Raise ValueError for an option that the driver refuses: it would do so with each connection.

        A name that resembles no option is not quoted, because it may be a part of a password.
        """
        if not names:
            return
        try:
            known = self.list_options()
        except ImportError:
            return
        for number, name in enumerate(names, start=1):
            if name in known:
                continue
            if similar := get_close_matches(name, sorted(known), 1):
                raise ValueError(f"has the option {name!r}, which is unknown: did you mean {similar[0]!r}?")
            raise ValueError(
                f"has an unknown option, number {number} after the question mark: expected options of the driver, and"
                " special characters of values %-encoded"
            )

    def configure(self, database: DatabaseSettings, waits: Waits) -> None:
        # Connections stay open: a process reuses its own, and Django replaces one that has died.
        database |= {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}

"""A database in DATABASE_URL and in Django's DATABASES. Settings import this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
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
    OPTIONS: dict[str, str]
    CONN_MAX_AGE: int | None
    CONN_HEALTH_CHECKS: bool
    TEST: dict[str, str]


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Time-outs of a session: the database ends what takes longer, so that a frozen process does not keep its locks."""

    idle_transaction_seconds: int
    lock_seconds: int
    statement_seconds: int


class DatabaseConfiguration(ABC):
    """One database's schemes and settings."""

    engine: str
    schemes: tuple[str, ...]

    @abstractmethod
    def parse_url(self, url: SplitResult) -> DatabaseSettings:
        """Return the entry of DATABASES for this URL. Raise ValueError, without quoting the URL, if it is wrong."""

    @abstractmethod
    def configure(self, database: DatabaseSettings, limits: SessionLimits) -> None:
        """Add the options of a session to the entry."""


class ServerConfiguration(DatabaseConfiguration):
    """A database server, as opposed to a file."""

    def parse_url(self, url: SplitResult) -> DatabaseSettings:
        name = unquote(url.path).strip("/")
        if not name:
            raise ValueError(f"names no database: expected {url.scheme}://user:password@host:port/name")
        return {
            "ENGINE": self.engine,
            "NAME": name,
            "USER": unquote(url.username or ""),
            "PASSWORD": unquote(url.password or ""),
            "HOST": url.hostname or "",
            "PORT": str(url.port or ""),
            "OPTIONS": dict(parse_qsl(url.query)),
        }

    def configure(self, database: DatabaseSettings, limits: SessionLimits) -> None:
        # Connections stay open: a process reuses its own, and Django replaces one that has died.
        database |= {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}

"""Settings from the environment: typed, and every fault of a boot named at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from cryptography.fernet import Fernet
from django.core.exceptions import ImproperlyConfigured

T = TypeVar("T")

SQLITE = "eventservice.db.dialects.sqlite"
POSTGRESQL = "django.db.backends.postgresql"
MARIADB = "eventservice.db.dialects.mariadb"

ENGINES = {
    "sqlite": SQLITE,
    "postgres": POSTGRESQL,
    "postgresql": POSTGRESQL,
    "mysql": MARIADB,
    "mariadb": MARIADB,
}


class Environment:
    """Reads variables and collects what is wrong with them; `check()` refuses the boot with the whole list."""

    def __init__(self, variables: Mapping[str, str] = os.environ) -> None:
        self._variables = variables
        self._faults: list[str] = []

    def check(self) -> None:
        if self._faults:
            raise ImproperlyConfigured("The environment is wrong:\n  " + "\n  ".join(self._faults))

    def fault(self, name: str, expected: str) -> None:
        given = self._variables.get(name)
        self._faults.append(
            f"{name} {'is not set' if given is None else f'is {given!r}'}: expected {expected}"
        )

    def _read(self, name: str, default: T, parse: Callable[[str], T], expected: str) -> T:
        raw = self._variables.get(name, "").strip()
        if not raw:
            return default
        try:
            return parse(raw)
        except ValueError:
            self.fault(name, expected)
            return default

    def text(self, name: str, default: str = "", *, most: int = 10_000) -> str:
        def bounded(value: str) -> str:
            if len(value) > most:
                raise ValueError
            return value

        return self._read(name, default, bounded, f"a text of at most {most:,} characters")

    def secret(self, name: str, development: str, *, production: bool) -> str:
        """A value that has a known default while developing and must be given in production."""
        value = self.text(name)
        if production:
            self.demand(name, value, "a long random text")
        return value or development

    def demand(self, name: str, value: object, expected: str) -> None:
        """In production."""
        if not value:
            self._faults.append(f"{name} is not set: expected {expected} (ENVIRONMENT is production)")

    def integer(self, name: str, default: int, *, least: int = 0, most: int = 2**31 - 1) -> int:
        return self._read(
            name, default, lambda raw: _bounded(int(raw), least, most), f"a whole number {least}-{most}"
        )

    def seconds(self, name: str, default: float, *, least: float = 0.001, most: float = 86_400.0) -> float:
        expected = f"a number of seconds {least}-{most}"
        return self._read(name, default, lambda raw: _bounded(float(raw), least, most), expected)

    def boolean(self, name: str, default: bool) -> bool:
        words = {
            "1": True,
            "true": True,
            "yes": True,
            "on": True,
            "0": False,
            "false": False,
            "no": False,
            "off": False,
        }

        def parse(raw: str) -> bool:
            if raw.lower() not in words:
                raise ValueError(raw)
            return words[raw.lower()]

        return self._read(name, default, parse, "true or false")

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        def parse(raw: str) -> str:
            if raw not in choices:
                raise ValueError(raw)
            return raw

        return self._read(name, default, parse, "one of " + ", ".join(choices))

    def words(
        self, name: str, default: Sequence[str] = (), *, each: Callable[[str], object] = str
    ) -> list[str]:
        """`each` raises a ValueError for a word that is wrong. Its text is shown, so it must not tell a secret."""
        found = self._read(
            name, list(default), lambda raw: [w.strip() for w in raw.split(",") if w.strip()], "a,b,c"
        )
        for number, word in enumerate(found, start=1):
            try:
                each(word)
            except ValueError as wrong:
                self._faults.append(f"{name}, No. {number}: {wrong}")
        return found

    def database(self, base: Path) -> dict[str, Any]:
        """DATABASE_URL, or the SQLite file at DB_PATH."""
        url = self._variables.get("DATABASE_URL", "").strip()
        if not url:
            path = Path(self.text("DB_PATH", "data/event_service.db")).expanduser()
            return {"ENGINE": SQLITE, "NAME": str(base / path)}
        try:
            return parse_database_url(url)
        except ValueError as wrong:
            # The URL may hold a password: the fault says what is wrong with it and not what it is.
            self._faults.append(f"DATABASE_URL {wrong}")
            return {"ENGINE": SQLITE, "NAME": ":memory:"}


def _bounded(value: T, least: Any, most: Any) -> T:
    if not least <= value <= most:
        raise ValueError(value)
    return value


def encryption_key(text: str) -> None:
    """Raises without a word of it: a key that is nearly right is still nearly a secret."""
    try:
        Fernet(text)
    except ValueError:
        raise ValueError("this is not a key: expected what `manage.py newkey` prints") from None


def parse_database_url(url: str) -> dict[str, Any]:
    parts, port = _split(url)
    engine = ENGINES.get(parts.scheme)
    if engine is None:
        raise ValueError(f"has the scheme {parts.scheme!r}: expected one of {', '.join(ENGINES)}")
    path = unquote(parts.path)
    if engine == SQLITE:
        # sqlite:///relative/path and sqlite:////absolute/path, as everywhere.
        if not path.strip("/"):
            raise ValueError("names no file: expected sqlite:///path/to/file.db")
        return {"ENGINE": engine, "NAME": path[1:]}
    name = path.strip("/")
    if not name:
        raise ValueError(f"names no database: expected {parts.scheme}://user:password@host:port/name")
    return {
        "ENGINE": engine,
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(port or ""),
        "OPTIONS": dict(parse_qsl(parts.query)),
    }


def _split(url: str) -> tuple[SplitResult, int | None]:
    try:
        parts = urlsplit(url)
        return parts, parts.port
    except ValueError:
        # Its message quotes what it could not read, and that may be the password.
        raise ValueError(
            "cannot be read: special characters of user and password must be %-encoded"
        ) from None

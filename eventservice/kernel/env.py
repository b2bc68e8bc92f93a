"""Settings from the environment: typed, and every fault of a boot named at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured

T = TypeVar("T")


class Environment:
    """Reads variables and collects what is wrong with them; `check()` refuses the boot with the whole list."""

    def __init__(self, variables: Mapping[str, str] = os.environ) -> None:
        self._variables = variables
        self._faults: list[str] = []

    def check(self) -> None:
        if self._faults:
            raise ImproperlyConfigured("The environment is wrong:\n  " + "\n  ".join(self._faults))

    def report(self, problem: str) -> None:
        self._faults.append(problem)

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

    def string(self, name: str, default: str = "", *, max_length: int | None = 10_000) -> str:
        def bounded(value: str) -> str:
            if max_length is not None and len(value) > max_length:
                raise ValueError
            return value

        return self._read(name, default, bounded, f"a text of at most {max_length} characters")

    def secret(self, name: str, development: str, *, production: bool) -> str:
        """A value that has a known default while developing and must be given in production."""
        value = self.string(name)
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


def _bounded(value: T, least: Any, most: Any) -> T:
    if not least <= value <= most:
        raise ValueError(value)
    return value


def encryption_key(text: str) -> None:
    """Raises without a word of it: a key that is nearly right is still nearly a secret."""
    from cryptography.fernet import Fernet  # slow to import, and development needs no keys

    try:
        Fernet(text)
    except ValueError:
        raise ValueError("this is not a key: expected what `manage.py newkey` prints") from None

"""Secrets at rest: Fernet under ENCRYPTION_KEYS, the first of which encrypts while all of them decrypt.

cryptography is imported on first use, because it is slow to import and most commands do not need it.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from django.conf import settings

from eventservice.kernel.errors import Conflict

if TYPE_CHECKING:
    from cryptography.fernet import Fernet, MultiFernet

MARK = "enc:v1:"
MAX_EXAMPLES = 3


class Undecipherable(Conflict):
    """None of the ENCRYPTION_KEYS opens this value."""

    def __init__(self) -> None:
        super().__init__(
            "secret_unreadable", "A stored secret was encrypted with a key that is not in ENCRYPTION_KEYS."
        )


def encrypt(plain: str) -> str:
    return MARK + _fernet().encrypt(plain.encode()).decode()


def decrypt(stored: str) -> str:
    return _opened(_fernet(), stored)


def decrypt_cached(stored: str) -> str:
    """And keep it in this process: for what many requests share."""
    return _kept_open(_fernet(), stored)


@dataclass(slots=True)
class Reencryption:
    """Of all that is stored, so that the keys behind the first one can go; and what none of them opens."""

    closed: int = 0
    examples: list[str] = field(default_factory=list)
    _first: Fernet = field(default_factory=lambda: _build_fernet(_keys()[0]))

    def renewed(self, stored: str, what: str) -> str:
        """Under the first key. As it is, where it is so already or where no key opens it."""
        try:
            _opened(self._first, stored)
        except Undecipherable:
            return self._anew(stored, what)
        return stored

    def _anew(self, stored: str, what: str) -> str:
        try:
            return encrypt(decrypt(stored))
        except Undecipherable:
            self.closed += 1
            if len(self.examples) < MAX_EXAMPLES:
                self.examples.append(what)
            return stored


def _opened(fernet: Fernet | MultiFernet, stored: str) -> str:
    from cryptography.fernet import InvalidToken

    try:
        return fernet.decrypt(stored.removeprefix(MARK).encode()).decode()
    except InvalidToken:
        raise Undecipherable from None


_kept_open = lru_cache(maxsize=1024)(_opened)


def is_encrypted(value: str) -> bool:
    return value.startswith(MARK)


@cache
def _fernet() -> MultiFernet:
    from cryptography.fernet import MultiFernet

    return MultiFernet([_build_fernet(key) for key in _keys()])


def _build_fernet(key: str) -> Fernet:
    from cryptography.fernet import Fernet

    return Fernet(key)


def _keys() -> list[str]:
    return settings.ENCRYPTION_KEYS or [_development_key()]


def _development_key() -> str:
    # Only outside production, where the settings refuse a boot without keys.
    return base64.urlsafe_b64encode(hashlib.sha256(settings.SECRET_KEY.encode()).digest()).decode()

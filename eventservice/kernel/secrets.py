"""Secrets at rest: Fernet with the ENCRYPTION_KEYS. The first key encrypts, and all of them decrypt.

cryptography is imported on first use, because it is slow to import and most commands do not need it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
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
    """None of the ENCRYPTION_KEYS decrypts this value."""

    def __init__(self) -> None:
        super().__init__(
            "secret_unreadable", "A stored secret was encrypted with a key that is not in ENCRYPTION_KEYS."
        )


def encrypt(plain: str) -> str:
    return MARK + _fernet().encrypt(plain.encode()).decode()


def decrypt(stored: str) -> str:
    return _decrypt_with(_fernet(), stored)


def decrypt_cached(stored: str) -> str:
    """Decrypt a secret that many requests share, and cache it in this process."""
    return _decrypt_cached(_fernet(), stored)


@dataclass(slots=True)
class Reencryption:
    """Encrypts stored secrets again with the first key, so that older keys can be removed.

    It counts the secrets that no key decrypts, and names the first of them.
    """

    unreadable: int = 0
    examples: list[str] = field(default_factory=list)
    _first: Fernet = field(default_factory=lambda: _build_fernet(_keys()[0]))

    def reencrypt(self, stored: str, description: str) -> str:
        """Return the secret encrypted with the first key, or unchanged if it already is or if no key decrypts it."""
        try:
            _decrypt_with(self._first, stored)
        except Undecipherable:
            return self._encrypt_again(stored, description)
        return stored

    def _encrypt_again(self, stored: str, description: str) -> str:
        try:
            return encrypt(decrypt(stored))
        except Undecipherable:
            self.unreadable += 1
            if len(self.examples) < MAX_EXAMPLES:
                self.examples.append(description)
            return stored


def derive_keys(purpose: str) -> list[bytes]:
    """Return the keys for one purpose: the first is the current one, the others are those that it has replaced.

    They depend on the SECRET_KEY and not on the ENCRYPTION_KEYS. These are removed when everything has been encrypted
    again, while a keyed hash cannot be computed again without its content.
    """
    secrets = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return [
        hmac.digest(secret.encode(), f"eventservice: {purpose}".encode(), hashlib.sha256)
        for secret in secrets
    ]


def _decrypt_with(fernet: Fernet | MultiFernet, stored: str) -> str:
    from cryptography.fernet import InvalidToken

    try:
        return fernet.decrypt(stored.removeprefix(MARK).encode()).decode()
    except InvalidToken:
        raise Undecipherable from None


_decrypt_cached = lru_cache(maxsize=1024)(_decrypt_with)


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
    # Settings refuse to start without keys in production.
    return base64.urlsafe_b64encode(hashlib.sha256(settings.SECRET_KEY.encode()).digest()).decode()

"""Secrets at rest: Fernet under ENCRYPTION_KEYS, the first of which encrypts while all of them decrypt."""

import base64
import hashlib
from functools import cache

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings

MARK = "enc:v1:"


class Undecipherable(Exception):
    """None of the ENCRYPTION_KEYS opens this value."""


def encrypt(plain: str) -> str:
    return MARK + _fernet().encrypt(plain.encode()).decode()


def decrypt(stored: str) -> str:
    try:
        return _fernet().decrypt(stored.removeprefix(MARK).encode()).decode()
    except InvalidToken:
        raise Undecipherable(
            "A stored secret was encrypted with a key that is not in ENCRYPTION_KEYS."
        ) from None


def is_encrypted(value: str) -> bool:
    return value.startswith(MARK)


@cache
def _fernet() -> MultiFernet:
    keys = settings.ENCRYPTION_KEYS or [_development_key()]
    return MultiFernet([Fernet(key) for key in keys])


def _development_key() -> str:
    # Only outside production, where the settings refuse a boot without keys.
    return base64.urlsafe_b64encode(hashlib.sha256(settings.SECRET_KEY.encode()).digest()).decode()

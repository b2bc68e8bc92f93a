"""Secrets are encrypted at rest, and keys can be changed without losing what older ones encrypted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cryptography.fernet import Fernet

from eventservice.kernel import secrets
from eventservice.kernel.secrets import Undecipherable, decrypt, encrypt, is_encrypted

OLD, NEW, FOREIGN = (Fernet.generate_key().decode() for _ in range(3))


@pytest.fixture
def keys(settings: Any) -> Iterator[Callable[..., None]]:
    def use(*given: str) -> None:
        settings.ENCRYPTION_KEYS = list(given)
        secrets._fernet.cache_clear()

    yield use
    secrets._fernet.cache_clear()


@pytest.mark.parametrize("plain", ["", "s3cret", "Ünïcode ☕", "x" * 100_000, "enc:v1:not really"])
def test_a_secret_comes_back_as_it_was(plain: str, keys: Callable[..., None]) -> None:
    keys(NEW)
    stored = encrypt(plain)
    assert is_encrypted(stored)
    assert not plain or plain not in stored
    assert decrypt(stored) == plain


def test_the_same_secret_is_stored_differently_each_time(keys: Callable[..., None]) -> None:
    keys(NEW)
    assert encrypt("s3cret") != encrypt("s3cret")


def test_after_a_rotation_old_secrets_are_readable_and_new_ones_need_the_new_key(
    keys: Callable[..., None],
) -> None:
    keys(OLD)
    before = encrypt("old")
    keys(NEW, OLD)
    assert decrypt(before) == "old"
    after = encrypt("new")
    keys(NEW)
    assert decrypt(after) == "new"
    with pytest.raises(Undecipherable):
        decrypt(before)


@pytest.mark.parametrize(
    "damage", [lambda s: s[:-4], lambda s: s.swapcase(), lambda s: "plain", lambda s: "ü"]
)
def test_a_secret_that_no_key_decrypts_is_refused_without_its_content(
    damage: Callable[[str], str], keys: Callable[..., None]
) -> None:
    keys(NEW)
    damaged = damage(encrypt("s3cret"))
    with pytest.raises(Undecipherable, match="not in ENCRYPTION_KEYS") as refusal:
        decrypt(damaged)
    assert damaged not in str(refusal.value)


def test_a_foreign_key_decrypts_nothing(keys: Callable[..., None]) -> None:
    keys(FOREIGN)
    stored = encrypt("s3cret")
    keys(NEW, OLD)
    with pytest.raises(Undecipherable):
        decrypt(stored)


def test_development_without_keys_derives_one(keys: Callable[..., None], settings: Any) -> None:
    keys()
    stored = encrypt("s3cret")
    assert decrypt(stored) == "s3cret"
    settings.SECRET_KEY = "another"
    secrets._fernet.cache_clear()
    with pytest.raises(Undecipherable):
        decrypt(stored)


def test_a_plain_value_is_not_an_encrypted_secret() -> None:
    assert not is_encrypted("s3cret")

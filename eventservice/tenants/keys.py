"""API keys. A key is shown once, when it is created, and recognized by a keyed hash."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import uuid
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import Count, F, Q, QuerySet
from django.db.models.functions import Coalesce, Least

from eventservice.db.dialects import get_dialect
from eventservice.db.now import DbNow, db_now
from eventservice.kernel.errors import Conflict, NotFound
from eventservice.tenants.models import ApiKey

PREFIX = "es"
ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # without characters that are easily confused
ID_LENGTH = 12
SECRET_LENGTH = 40
HASH_KEY_ID_LENGTH = 16
USE_RECORD_INTERVAL = timedelta(hours=1)
EXPIRES_SOON = timedelta(days=14)
# A successor lives as long again, and the calendar ends with the year 9999. Older keys may have a longer life.
MAX_LIFETIME = timedelta(days=36_500)
# How long a rotated key stays valid beside its successor.
MAX_OVERLAP = timedelta(days=30)
DEFAULT_OVERLAP = timedelta(days=1)


def create_key(
    tenant_id: uuid.UUID | None,
    scopes: Collection[str],
    *,
    name: str = "",
    expires_at: datetime | None = None,
) -> tuple[ApiKey, str]:
    """Create a key, and return it with its full text, which cannot be read again. An operator's key has no tenant."""
    key_id, secret = _random(ID_LENGTH), _random(SECRET_LENGTH)
    key = ApiKey.objects.create(
        key_id=key_id,
        tenant_id=tenant_id,
        name=name,
        secret_hash=_hash(secret),
        hash_key_id=_identify_hash_key(settings.SECRET_KEY),
        scopes=sorted(ApiKey.Scope(scope) for scope in scopes),
        created_at=DbNow(),
        expires_at=expires_at,
    )
    return key, f"{PREFIX}_{'live' if settings.PRODUCTION else 'dev'}_{key_id}_{secret}"


def get_key_id(text: str) -> str | None:
    """Return the id in the text of a key, which pages show, or None if the text does not have the form of a key.

    The text is what a client has sent. No part of it is returned that may belong to a secret.
    """
    parts = text.split("_")
    if (
        len(parts) != 4
        or parts[0] != PREFIX
        or len(parts[2]) != ID_LENGTH
        or not set(parts[2]) <= set(ALPHABET)
    ):
        return None
    return parts[2]


def find_key(text: str) -> ApiKey | None:
    """Return the valid key with this text, or None. Both take the same time.

    Its `hash_key_id` says which SECRET_KEY it was recognized with, whether that is stored already or not.
    """
    parts = text.split("_")
    well_formed = len(parts) == 4 and parts[0] == PREFIX and parts[2].isalnum()
    key_id, secret = (parts[2], parts[3]) if well_formed else ("", "")
    of_active = Q(tenant=None) | Q(tenant__active=True)
    key = ApiKey.across_tenants.filter(_usable(), of_active, key_id=key_id).first()
    stored = key.secret_hash if key else ""
    matches = [hmac.compare_digest(found, stored) for found in _list_hashes(secret)]
    if key is None or not any(matches):
        return None
    key.hash_key_id = _identify_hash_key(_list_secret_keys()[matches.index(True)])
    return key


def _usable() -> Q:
    return Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=DbNow()))


def find_active_key(key_id: str) -> ApiKey | None:
    """Return the key with this id, of whichever tenant, if it is not revoked. Operators name keys by id."""
    return ApiKey.across_tenants.filter(pk=key_id, revoked_at=None).first()


def list_keys(tenant_id: uuid.UUID | None) -> list[ApiKey]:
    """Return a tenant's keys, or those of operators."""
    return list(_owned_by(tenant_id).order_by("created_at", "key_id"))


def _owned_by(tenant_id: uuid.UUID | None) -> QuerySet[ApiKey]:
    if tenant_id is None:
        return ApiKey.across_tenants.filter(tenant=None)
    return ApiKey.objects.for_tenant(tenant_id)


class KeyState(StrEnum):
    ACTIVE = "active"
    ENDING = "ending"  # active, and about to expire
    EXPIRED = "expired"
    REVOKED = "revoked"


def get_key_state(key: ApiKey, now: datetime) -> KeyState:
    if key.revoked_at is not None:
        return KeyState.REVOKED
    if key.expires_at is None:
        return KeyState.ACTIVE
    if key.expires_at <= now:
        return KeyState.EXPIRED
    return KeyState.ENDING if key.expires_at < now + EXPIRES_SOON else KeyState.ACTIVE


class HashKeyMark(StrEnum):
    """The marks of keys in lists that depend on another value than SECRET_KEY (docs/operations.md)."""

    FALLBACK = "fallback"  # one of SECRET_KEY_FALLBACKS, without which the key is refused
    UNKNOWN = "unknown"  # perhaps one of SECRET_KEY_FALLBACKS: its next use tells
    LOST = "lost"  # neither SECRET_KEY nor one of SECRET_KEY_FALLBACKS: the key is refused


def find_hash_key_mark(key: ApiKey, now: datetime) -> HashKeyMark | None:
    """Return the mark of a key, or None if it does not depend on a fallback, or has ended."""
    if get_key_state(key, now) in (KeyState.EXPIRED, KeyState.REVOKED):
        return None
    current, *fallbacks = map(_identify_hash_key, _list_secret_keys())
    if key.hash_key_id == current:
        return None
    if key.hash_key_id is None:
        return HashKeyMark.UNKNOWN if fallbacks else None
    return HashKeyMark.FALLBACK if key.hash_key_id in fallbacks else HashKeyMark.LOST


class DescribedKey(NamedTuple):
    """A key with what a list says about it."""

    key: ApiKey
    state: KeyState
    mark: HashKeyMark | None


def list_keys_with_state(tenant_id: uuid.UUID | None, now: datetime) -> list[DescribedKey]:
    """Return keys with their states: usable keys first, and the newest first among these and among the others."""
    described = [
        DescribedKey(key, get_key_state(key, now), find_hash_key_mark(key, now))
        for key in reversed(list_keys(tenant_id))
    ]
    return sorted(described, key=lambda one: one.state in (KeyState.EXPIRED, KeyState.REVOKED))


def get_key(tenant_id: uuid.UUID | None, key_id: str) -> ApiKey:
    """Return a key of this tenant, or of operators. Raise NotFound for any other."""
    key = _owned_by(tenant_id).filter(pk=key_id).first()
    if key is None:
        raise NotFound("API key")
    return key


def require_rotatable(key: ApiKey) -> None:
    """Raise Conflict for a key that has ended or was rotated: rotating it would grant its rights again."""
    if key.successor_id is not None:
        rotated = f"This key was already rotated into {key.successor_id}: rotate that one."
        raise Conflict("already_rotated", rotated)
    if key.revoked_at is not None:
        raise Conflict("wrong_state", "This key has been revoked.")
    if key.expires_at is not None and key.expires_at <= db_now():
        raise Conflict("wrong_state", "This key has expired.")


def count_usable_keys(tenant_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, int]:
    """Return the number of keys of each tenant that are neither revoked nor expired."""
    keys = ApiKey.across_tenants.filter(_usable(), tenant_id__in=tenant_ids)
    return dict(keys.order_by().values_list("tenant_id").annotate(Count("key_id")))


def record_use(key: ApiKey) -> None:
    """Record when a key was used, to the hour: enough to find unused keys, without a write for every request. With it goes
    the SECRET_KEY that it was recognized with.

    The request neither waits for this nor fails because of it: the next one records it instead.
    """
    if key.last_used_at is not None and key.last_used_at > db_now() - USE_RECORD_INTERVAL:
        return
    rows = ApiKey.across_tenants.filter(pk=key.pk)
    with suppress(DatabaseError), get_dialect().locks.without_waiting(), transaction.atomic():
        if rows.select_for_update(skip_locked=True).values_list("pk"):
            rows.update(last_used_at=DbNow(), hash_key_id=key.hash_key_id)


def rotate_key(key: ApiKey, overlap: timedelta) -> tuple[ApiKey, str]:
    """Create a successor with the same rights and lifetime. The old key keeps working for the overlap.

    A key is rotated once: a second successor would double its rights.
    """
    life = min(key.expires_at - key.created_at, MAX_LIFETIME) if key.expires_at else None
    ends = Least(Coalesce(F("expires_at"), DbNow(overlap)), DbNow(overlap))
    with transaction.atomic():
        successor, text = create_key(
            key.tenant_id, key.scopes, name=key.name, expires_at=db_now() + life if life else None
        )
        keys = ApiKey.across_tenants.filter(pk=key.pk)
        rotatable = keys.filter(_usable(), successor_id=None)
        if not rotatable.update(expires_at=ends, successor_id=successor.key_id):
            require_rotatable(keys.get())
            raise Conflict("wrong_state", "This key was changed at the same time. Try again.")
    return successor, text


def revoke_key(key_id: str) -> bool:
    return bool(ApiKey.across_tenants.filter(pk=key_id, revoked_at=None).update(revoked_at=DbNow()))


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


def _hash(secret: str) -> str:
    return _list_hashes(secret)[0]


def _list_hashes(secret: str) -> list[str]:
    """Return the hash with the SECRET_KEY, and those with the keys that it has replaced."""
    return [
        hmac.new(key.encode(), secret.encode(), hashlib.sha256).hexdigest() for key in _list_secret_keys()
    ]


def _list_secret_keys() -> list[str]:
    return [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]


@lru_cache(maxsize=16)
def _identify_hash_key(secret_key: str) -> str:
    """Return an id of a SECRET_KEY, from which it cannot be computed."""
    digest = hmac.new(secret_key.encode(), b"eventservice.tenants.keys.hash_key_id", hashlib.sha256)
    return digest.hexdigest()[:HASH_KEY_ID_LENGTH]

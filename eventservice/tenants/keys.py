"""API keys: made, shown once, and recognised by a keyed hash."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import uuid
from collections.abc import Collection
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Coalesce, Least

from eventservice.kernel.errors import Conflict
from eventservice.kernel.now import DbNow, db_now
from eventservice.tenants.models import ApiKey

PREFIX = "es"
ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # nothing that a person could misread
ID_LENGTH = 12
SECRET_LENGTH = 40
USE_NOTED = timedelta(hours=1)


def create_key(
    tenant_id: uuid.UUID | None,
    scopes: Collection[str],
    *,
    name: str = "",
    expires_at: datetime | None = None,
) -> tuple[ApiKey, str]:
    """A new key and its full text, which nobody will see again. No tenant: an operator's key."""
    key_id, secret = _random(ID_LENGTH), _random(SECRET_LENGTH)
    key = ApiKey.objects.create(
        key_id=key_id,
        tenant_id=tenant_id,
        name=name,
        secret_hash=_hash(secret),
        scopes=sorted(ApiKey.Scope(scope) for scope in scopes),
        created_at=DbNow(),
        expires_at=expires_at,
    )
    return key, f"{PREFIX}_{'live' if settings.PRODUCTION else 'dev'}_{key_id}_{secret}"


def find_key(text: str) -> ApiKey | None:
    """The valid key that this text is; None for anything else, in the same time."""
    parts = text.split("_")
    well_formed = len(parts) == 4 and parts[0] == PREFIX and parts[2].isalnum()
    key_id, secret = (parts[2], parts[3]) if well_formed else ("", "")
    usable = Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=DbNow()))
    usable &= Q(tenant=None) | Q(tenant__active=True)
    key: ApiKey | None = ApiKey.objects.across_tenants().filter(usable, key_id=key_id).first()
    matches = hmac.compare_digest(_hash(secret), key.secret_hash if key else "")
    return key if matches else None


def find_by_id(key_id: str) -> ApiKey | None:
    """Operators name a key by its id alone."""
    found: ApiKey | None = ApiKey.objects.across_tenants().filter(pk=key_id, revoked_at=None).first()
    return found


def keys_of(tenant_id: uuid.UUID | None) -> list[ApiKey]:
    """A tenant's keys, or the operators' own."""
    return list(ApiKey.objects.across_tenants().filter(tenant_id=tenant_id).order_by("created_at", "key_id"))


def note_use(key: ApiKey) -> None:
    """To the hour: enough to find keys that nobody uses, and not a write for every request."""
    used = ApiKey.objects.across_tenants().filter(pk=key.pk)
    used.filter(Q(last_used_at=None) | Q(last_used_at__lt=DbNow(-USE_NOTED))).update(last_used_at=DbNow())


def rotate_key(key: ApiKey, overlap: timedelta) -> tuple[ApiKey, str]:
    """A successor with the same rights and as long a life; the old key goes on for the overlap and then ends."""
    with transaction.atomic():
        ends = Least(Coalesce(F("expires_at"), DbNow(overlap)), DbNow(overlap))
        usable = ApiKey.objects.across_tenants().filter(pk=key.pk, revoked_at=None)
        if not usable.update(expires_at=ends):
            raise Conflict("key_revoked", "A key that has been revoked cannot be rotated.")
        life = key.expires_at - key.created_at if key.expires_at else None
        return create_key(
            key.tenant_id, key.scopes, name=key.name, expires_at=db_now() + life if life else None
        )


def revoke_key(key_id: str) -> bool:
    return bool(ApiKey.objects.across_tenants().filter(pk=key_id, revoked_at=None).update(revoked_at=DbNow()))


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


def _hash(secret: str) -> str:
    return hmac.new(settings.SECRET_KEY.encode(), secret.encode(), hashlib.sha256).hexdigest()

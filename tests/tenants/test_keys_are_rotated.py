"""A rotated key has a successor with the same rights, and keeps working for the overlap."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from eventservice.db.now import pin_time
from eventservice.kernel.errors import Conflict
from eventservice.tenants.keys import MAX_LIFETIME, create_key, find_key, revoke_key, rotate_key
from eventservice.tenants.models import ApiKey, Tenant

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

HOUR = timedelta(hours=1)


def read_expiry(key: ApiKey) -> datetime:
    ends = ApiKey.across_tenants.get(pk=key.key_id).expires_at
    assert ends is not None
    return ends


def test_the_successor_has_the_same_rights_and_another_secret(tenant: Tenant) -> None:
    key, text = create_key(tenant.tenant_id, ["read", "write"], name="ci")
    successor, new_text = rotate_key(key, HOUR)
    assert (successor.tenant_id, successor.scopes, successor.name) == (key.tenant_id, key.scopes, key.name)
    assert successor.key_id != key.key_id
    assert find_key(new_text) == successor
    assert text != new_text


def test_both_are_valid_until_the_overlap_ends(tenant: Tenant, at_noon: datetime) -> None:
    key, text = create_key(tenant.tenant_id, ["read"])
    _, new_text = rotate_key(key, HOUR)
    with pin_time(at_noon + HOUR - timedelta(microseconds=1)):
        assert find_key(text)
        assert find_key(new_text)
    with pin_time(at_noon + HOUR):
        assert find_key(text) is None
        assert find_key(new_text)


def test_without_an_overlap_the_old_one_ends_at_once(tenant: Tenant) -> None:
    key, text = create_key(tenant.tenant_id, ["read"])
    rotate_key(key, timedelta())
    assert find_key(text) is None


@pytest.mark.parametrize(("left", "ends"), [(HOUR / 2, HOUR / 2), (2 * HOUR, HOUR)], ids=str)
def test_a_key_never_ends_later_than_it_would_have(
    left: timedelta, ends: timedelta, tenant: Tenant, at_noon: datetime
) -> None:
    key, _ = create_key(tenant.tenant_id, ["read"], expires_at=at_noon + left)
    key.refresh_from_db()
    rotate_key(key, HOUR)
    assert read_expiry(key) == at_noon + ends


def test_a_key_is_rotated_once(tenant: Tenant) -> None:
    key, _ = create_key(tenant.tenant_id, ["read"])
    successor, text = rotate_key(key, HOUR)
    with pytest.raises(Conflict, match=f"into {successor.key_id}: rotate that one") as refused:
        rotate_key(key, HOUR)
    assert refused.value.code == "already_rotated"
    assert ApiKey.objects.for_tenant(tenant.tenant_id).count() == 2
    assert find_key(text) == successor


def test_a_successor_can_be_rotated_and_lives_as_long(tenant: Tenant) -> None:
    key, _ = create_key(tenant.tenant_id, ["read"])
    successor, _ = rotate_key(key, HOUR)
    third, _ = rotate_key(successor, HOUR)
    assert (third.expires_at, read_expiry(key)) == (None, read_expiry(successor))


def test_the_successor_of_a_key_with_a_very_late_end_has_the_maximum_lifetime(
    tenant: Tenant, at_noon: datetime
) -> None:
    key, _ = create_key(tenant.tenant_id, ["read"], expires_at=datetime.max.replace(tzinfo=UTC))
    key.refresh_from_db()
    successor, _ = rotate_key(key, HOUR)
    assert (read_expiry(successor), read_expiry(key)) == (at_noon + MAX_LIFETIME, at_noon + HOUR)


def test_a_key_that_was_revoked_meanwhile_is_not_rotated(tenant: Tenant) -> None:
    key, _ = create_key(tenant.tenant_id, ["read"])
    revoke_key(key.key_id)
    with pytest.raises(Conflict, match="revoked"):
        rotate_key(key, HOUR)
    assert ApiKey.objects.for_tenant(tenant.tenant_id).count() == 1


def test_other_keys_keep_working(tenant: Tenant, intruder: Tenant) -> None:
    key, _ = create_key(tenant.tenant_id, ["read"])
    others = [create_key(whose.tenant_id, ["read"])[1] for whose in (tenant, intruder)]
    rotate_key(key, timedelta())
    assert all(find_key(text) for text in others)

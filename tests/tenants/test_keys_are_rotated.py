"""A key is followed by another with the same rights, while the old one goes on for a while."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from eventservice.kernel.now import pinned_time
from eventservice.tenants.keys import create_key, find_key, rotate_key
from eventservice.tenants.models import ApiKey, Tenant

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

HOUR = timedelta(hours=1)


def end_of(key: ApiKey) -> datetime:
    ends: datetime = ApiKey.objects.across_tenants().get(pk=key.key_id).expires_at
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
    with pinned_time(at_noon + HOUR - timedelta(microseconds=1)):
        assert find_key(text)
        assert find_key(new_text)
    with pinned_time(at_noon + HOUR):
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
    rotate_key(key, HOUR)
    assert end_of(key) == at_noon + ends


def test_other_keys_go_on(tenant: Tenant, intruder: Tenant) -> None:
    key, _ = create_key(tenant.tenant_id, ["read"])
    others = [create_key(whose.tenant_id, ["read"])[1] for whose in (tenant, intruder)]
    rotate_key(key, timedelta())
    assert all(find_key(text) for text in others)

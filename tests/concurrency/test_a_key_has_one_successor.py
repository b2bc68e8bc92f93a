"""A key that is rotated many times at once gets one successor; all other rotations are refused and name it."""

from __future__ import annotations

from datetime import timedelta

from eventservice.kernel.errors import Conflict
from eventservice.tenants.keys import create_key, rotate_key
from eventservice.tenants.models import ApiKey, Tenant
from tests.concurrency.races import ROUNDS, race

AT_ONCE = 8


def test_a_key_has_one_successor(acme: Tenant) -> None:
    for overlap in [timedelta(), timedelta(hours=1)] * (ROUNDS // 2):
        key, _ = create_key(acme.tenant_id, ["read"], name="ci")
        results = race(*[lambda key=key, overlap=overlap: rotate_key(key, overlap)] * AT_ONCE)

        (made,) = [one[0] for one in results if isinstance(one, tuple)]
        refusals = [one for one in results if isinstance(one, Conflict)]
        assert len(refusals) == AT_ONCE - 1
        assert {refusal.code for refusal in refusals} == {"already_rotated"}
        assert all(made.key_id in refusal.message for refusal in refusals)
        assert ApiKey.objects.for_tenant(acme.tenant_id).get(pk=key.key_id).successor_id == made.key_id
        assert made.expires_at is None

"""An API key is found by its text, unless it is wrong, expired or revoked."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from eventservice.db.now import pin_time
from eventservice.kernel.errors import Conflict
from eventservice.tenants.keys import (
    ALPHABET,
    create_key,
    find_key,
    list_keys_with_state,
    record_use,
    revoke_key,
    rotate_key,
)
from eventservice.tenants.models import ApiKey, Tenant

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


def test_a_key_names_its_environment_and_its_id(tenant: Tenant) -> None:
    key, text = create_key(tenant.tenant_id, ["read"])
    form = re.fullmatch(rf"es_dev_([{ALPHABET}]{{12}})_([{ALPHABET}]{{40}})", text)
    assert form
    assert form[1] == key.key_id


def test_a_key_of_production_says_so(tenant: Tenant, settings: Any) -> None:
    settings.PRODUCTION = True
    assert create_key(tenant.tenant_id, ["read"])[1].startswith("es_live_")


def test_the_secret_is_not_stored(tenant: Tenant) -> None:
    key, text = create_key(tenant.tenant_id, ["read"])
    secret = text.rpartition("_")[2]
    stored = str(ApiKey.objects.for_tenant(tenant.tenant_id).values().get())
    assert secret not in stored
    assert (
        key.secret_hash != hashlib.sha256(secret.encode()).hexdigest()
    )  # keyed: worthless without SECRET_KEY


def test_a_key_is_found_while_the_secret_key_that_was_replaced_is_known(
    tenant: Tenant, settings: Any
) -> None:
    key, text = create_key(tenant.tenant_id, ["read"])
    replaced, settings.SECRET_KEY = settings.SECRET_KEY, "new"
    assert find_key(text) is None
    settings.SECRET_KEY_FALLBACKS = ["older", replaced]
    assert find_key(text) == key
    assert find_key(create_key(tenant.tenant_id, ["read"])[1]) is not None


def list_marks(tenant: Tenant, now: datetime) -> dict[str, str | None]:
    return {key.name: mark for key, _, mark in list_keys_with_state(tenant.tenant_id, now)}


def test_keys_that_depend_on_a_replaced_secret_key_are_marked(
    tenant: Tenant, settings: Any, at_noon: datetime
) -> None:
    create_key(tenant.tenant_id, ["read"], name="old")
    revoked, _ = create_key(tenant.tenant_id, ["read"], name="revoked")
    revoke_key(revoked.key_id)
    assert list_marks(tenant, at_noon) == {"old": None, "revoked": None}
    replaced, settings.SECRET_KEY = settings.SECRET_KEY, "new"
    create_key(tenant.tenant_id, ["read"], name="fresh")
    assert list_marks(tenant, at_noon) == {"old": "lost", "revoked": None, "fresh": None}
    settings.SECRET_KEY_FALLBACKS = ["older", replaced]
    assert list_marks(tenant, at_noon) == {"old": "fallback", "revoked": None, "fresh": None}


def test_the_use_of_a_key_of_an_earlier_release_tells_on_which_secret_key_it_depends(
    tenant: Tenant, settings: Any, at_noon: datetime
) -> None:
    _, old_text = create_key(tenant.tenant_id, ["read"], name="old")
    replaced, settings.SECRET_KEY = settings.SECRET_KEY, "new"
    _, fresh_text = create_key(tenant.tenant_id, ["read"], name="fresh")
    ApiKey.across_tenants.update(hash_key_id=None)
    assert list_marks(tenant, at_noon) == {"old": None, "fresh": None}
    settings.SECRET_KEY_FALLBACKS = [replaced]
    assert list_marks(tenant, at_noon) == {"old": "unknown", "fresh": "unknown"}
    for text in (old_text, fresh_text):
        key = find_key(text)
        assert key is not None
        record_use(key)
    assert list_marks(tenant, at_noon) == {"old": "fallback", "fresh": None}


def test_the_id_of_the_secret_key_does_not_contain_it(tenant: Tenant, settings: Any) -> None:
    ids = set()
    for secret_key in ("a" * 40, "b" * 40):
        settings.SECRET_KEY = secret_key
        key, _ = create_key(tenant.tenant_id, ["read"])
        ids.add(key.hash_key_id)
        assert key.hash_key_id != hashlib.sha256(secret_key.encode()).hexdigest()[:16]
    assert len(ids) == 2


def test_a_key_is_found_with_all_its_rights(tenant: Tenant, at_noon: datetime) -> None:
    key, text = create_key(tenant.tenant_id, ["write", "read"], name="ci")
    found = find_key(text)
    assert found == key
    assert found is not None
    assert (found.tenant_id, found.name, found.scopes, found.created_at) == (
        tenant.tenant_id,
        "ci",
        ["read", "write"],
        at_noon,
    )


def test_an_operators_key_belongs_to_no_tenant(db: None) -> None:
    found = find_key(create_key(None, ["admin"])[1])
    assert found is not None
    assert found.tenant_id is None


def test_an_unknown_scope_creates_no_key(tenant: Tenant) -> None:
    with pytest.raises(ValueError, match="everything"):
        create_key(tenant.tenant_id, ["read", "everything"])
    assert not ApiKey.across_tenants.exists()


def test_two_keys_have_nothing_in_common(tenant: Tenant) -> None:
    (one, first), (other, second) = (create_key(tenant.tenant_id, ["read"]) for _ in range(2))
    assert one.key_id != other.key_id
    assert find_key(first.rpartition("_")[0] + "_" + second.rpartition("_")[2]) is None


def test_a_wrong_secret_finds_nothing(tenant: Tenant) -> None:
    text = create_key(tenant.tenant_id, ["read"])[1]
    changed = text[:-1] + ("a" if text[-1] != "a" else "b")
    for wrong in (changed, text[:-1], text + "a", text.rpartition("_")[0] + "_"):
        assert find_key(wrong) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "_",
        "___",
        "es_dev__",
        "es_dev_a",
        "es_dev_a_b_c",
        "xx_dev_a_b",
        "es_dev_a\0b_c",
        "es_dev_ü_ü",
        "' OR 1=1",
        "x" * 9999,
    ],
)
def test_malformed_text_finds_nothing_and_raises_nothing(text: str, tenant: Tenant) -> None:
    create_key(tenant.tenant_id, ["read"])
    assert find_key(text) is None


def test_keys_are_case_sensitive(tenant: Tenant) -> None:
    text = create_key(tenant.tenant_id, ["read"])[1]
    head, key_id, secret = text.rsplit("_", 2)
    assert find_key(f"{head}_{key_id.upper()}_{secret}") is None
    assert find_key(f"{head}_{key_id}_{secret.upper()}") is None


def test_a_key_expires_at_its_time_and_not_before(tenant: Tenant, at_noon: datetime) -> None:
    ends = at_noon + timedelta(hours=1)
    text = create_key(tenant.tenant_id, ["read"], expires_at=ends)[1]
    with pin_time(ends - timedelta(microseconds=1)):
        assert find_key(text)
    with pin_time(ends):
        assert find_key(text) is None


def test_a_revoked_key_is_not_found_and_is_revoked_once(tenant: Tenant, at_noon: datetime) -> None:
    (key, text), (_, other) = (create_key(tenant.tenant_id, ["read"]) for _ in range(2))
    assert revoke_key(key.key_id)
    assert find_key(text) is None
    assert find_key(other)
    with pin_time(at_noon + timedelta(hours=1)):
        assert not revoke_key(key.key_id)
    assert ApiKey.across_tenants.get(pk=key.key_id).revoked_at == at_noon
    assert not revoke_key("nobody")


@pytest.mark.parametrize("wrong", ["id", "secret", "form"])
def test_every_failure_makes_the_same_queries(
    wrong: str, tenant: Tenant, django_assert_num_queries: Any
) -> None:
    """Neither the response to a wrong key nor its time shows whether the id exists."""
    key_id, secret = create_key(tenant.tenant_id, ["read"])[1].split("_")[2:]
    text = {
        "id": f"es_dev_{'a' * 12}_{secret}",
        "secret": f"es_dev_{key_id}_{'a' * 40}",
        "form": "nonsense",
    }[wrong]
    with django_assert_num_queries(1):
        assert find_key(text) is None


def test_a_revoked_key_is_not_rotated(tenant: Tenant) -> None:
    key, text = create_key(tenant.tenant_id, ["read"])
    revoke_key(key.key_id)
    with pytest.raises(Conflict):
        rotate_key(key, timedelta(hours=1))
    assert find_key(text) is None


def test_a_successor_lives_as_long_as_its_predecessor_would_have(tenant: Tenant, at_noon: datetime) -> None:
    key, _ = create_key(tenant.tenant_id, ["read"], expires_at=at_noon + timedelta(days=30))
    key.refresh_from_db()
    successor, _ = rotate_key(key, timedelta(hours=1))
    successor.refresh_from_db()
    assert successor.expires_at == at_noon + timedelta(days=30)


def test_a_key_of_an_inactive_tenant_is_not_found(tenant: Tenant) -> None:
    _, text = create_key(tenant.tenant_id, ["read"])
    Tenant.objects.filter(pk=tenant.pk).update(active=False)
    assert find_key(text) is None


def test_a_use_is_recorded_once_an_hour(tenant: Tenant, at_noon: datetime) -> None:
    key, _ = create_key(tenant.tenant_id, ["read"])

    def read_last_use(minutes: int) -> datetime | None:
        with pin_time(at_noon + timedelta(minutes=minutes)):
            key.refresh_from_db()
            record_use(key)
            key.refresh_from_db()
        return key.last_used_at

    assert [read_last_use(minutes) for minutes in (0, 59, 61)] == [
        at_noon, at_noon, at_noon + timedelta(minutes=61),
    ]  # fmt: skip
    with pin_time(at_noon + timedelta(minutes=62)), CaptureQueriesContext(connection) as queries:
        record_use(key)
    assert not [one for one in queries if "UPDATE" in one["sql"]], "it would lock, if only for no row"

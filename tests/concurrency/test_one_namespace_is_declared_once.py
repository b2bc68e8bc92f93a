"""A namespace that is declared many times at once exists once; its number of shards cannot be changed by any race."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db import IntegrityError, transaction

from eventservice.db.now import db_now
from eventservice.kernel.errors import Conflict
from eventservice.tenants.directory import declare_namespace
from eventservice.tenants.models import Namespace, Tenant
from tests.concurrency.races import ROUNDS, race

AT_ONCE = 8


def read_shards(tenant: Tenant, name: str) -> int:
    return Namespace.objects.for_tenant(tenant.tenant_id).get(name=name).num_shards


def test_one_namespace_is_declared_once(acme: Tenant) -> None:
    for number in range(ROUNDS):
        name = f"blue-{number}"
        results = race(*[partial(declare_namespace, acme.tenant_id, name, 4)] * AT_ONCE)

        assert {(one.name, one.num_shards) for one, _ in results} == {(name, 4)}
        assert sorted(is_new for _, is_new in results) == [False] * (AT_ONCE - 1) + [True]
        assert Namespace.objects.for_tenant(acme.tenant_id).filter(name=name).count() == 1


def test_another_number_of_shards_is_refused(acme: Tenant) -> None:
    results = race(
        lambda: declare_namespace(acme.tenant_id, "blue", 4),
        lambda: declare_namespace(acme.tenant_id, "blue", 8),
    )

    (refused,) = [one for one in results if isinstance(one, Conflict)]
    ((made, is_new),) = [one for one in results if isinstance(one, tuple)]
    assert refused.code == "immutable"
    assert is_new
    assert read_shards(acme, "blue") == made.num_shards


def test_a_declaration_within_a_longer_transaction_wins_or_is_refused(acme: Tenant) -> None:
    """The API declares within a transaction that it commits later: others wait for it, or for its rollback."""

    def declare(name: str, shards: int, commit: bool) -> Any:
        with transaction.atomic():
            declared = declare_namespace(acme.tenant_id, name, shards)
            transaction.set_rollback(not commit)
        return declared if commit else None

    for number in range(ROUNDS):
        name = f"blue-{number}"
        race(
            partial(declare, name, 4, commit=False),
            partial(declare, name, 8, commit=True),
            partial(declare, name, 8, commit=True),
        )
        assert read_shards(acme, name) == 8


def test_what_was_checked_before_another_declared_is_refused_by_the_database(acme: Tenant) -> None:
    def save(name: str, shards: int) -> None:
        # Django's save() checks, then tries an UPDATE, then an INSERT.
        Namespace(tenant_id=acme.tenant_id, name=name, num_shards=shards, created_at=db_now()).save()

    def overwrite(name: str) -> int:
        return Namespace.objects.for_tenant(acme.tenant_id).filter(name=name).update(num_shards=32)

    for number in range(ROUNDS):
        name = f"blue-{number}"
        results = race(
            partial(save, name, 8),
            partial(save, name, 16),
            partial(overwrite, name),
            partial(declare_namespace, acme.tenant_id, name, 4),
        )
        assert all(isinstance(one, Conflict | IntegrityError | tuple | int | None) for one in results), (
            results
        )
        assert 1 not in results
        assert read_shards(acme, name) in {4, 8, 16}
        for shards in {4, 8, 16} - {read_shards(acme, name)}:
            assert isinstance(race(partial(save, name, shards))[0], Conflict)

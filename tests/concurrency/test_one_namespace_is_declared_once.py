"""A namespace that is declared many times at once exists once; a declaration with other shards is refused."""

from __future__ import annotations

from eventservice.kernel.errors import Conflict
from eventservice.tenants.directory import declare_namespace
from eventservice.tenants.models import Namespace, Tenant
from tests.concurrency.races import ROUNDS, race

AT_ONCE = 8


def test_one_namespace_is_declared_once(acme: Tenant) -> None:
    for number in range(ROUNDS):
        name = f"blue-{number}"
        results = race(*[lambda name=name: declare_namespace(acme.tenant_id, name, 4)] * AT_ONCE)

        assert {(one.name, one.num_shards) for one in results} == {(name, 4)}
        assert Namespace.objects.for_tenant(acme.tenant_id).filter(name=name).count() == 1


def test_another_number_of_shards_is_refused(acme: Tenant) -> None:
    results = race(
        lambda: declare_namespace(acme.tenant_id, "blue", 4),
        lambda: declare_namespace(acme.tenant_id, "blue", 8),
    )

    (refused,) = [one for one in results if isinstance(one, Conflict)]
    (made,) = [one for one in results if isinstance(one, Namespace)]
    assert refused.code == "immutable"
    assert Namespace.objects.for_tenant(acme.tenant_id).get(name="blue").num_shards == made.num_shards

"""The feeder's thread works beside the engine's, and leaves the store when it is stopped."""

from __future__ import annotations

from datetime import datetime

import pytest

from eventservice.db.now import db_now
from eventservice.kernel.ids import new_id
from orchestration.feeder.database_calls import DatabaseCalls
from orchestration.feeder.thread import FeederThread
from orchestration.models import ServiceCall
from tests.contracts.timer_stores.memory_store import MemoryTables, MemoryTimerStore
from tests.factories import NamespaceFactory, TenantFactory
from tests.process_harness import wait_until
from timers.stores.port import QualifiedNamespace, Revision, StoredTimer, TimerKey, round_up

STORE, NUM_SHARDS = "fleet", 4


class RunningStore(MemoryTimerStore):
    """A store whose clock goes with that of the database."""

    def read_clock(self) -> datetime:
        return db_now()


@pytest.mark.django_db(transaction=True)
def test_the_thread_feeds_what_is_due_and_leaves_the_store_when_it_is_stopped() -> None:
    tenant = TenantFactory()
    NamespaceFactory(tenant=tenant, name="alerts", num_shards=NUM_SHARDS, store=STORE)
    namespace, tables, now = (
        QualifiedNamespace(tenant.tenant_id, "alerts"),
        MemoryTables(),
        round_up(db_now()),
    )
    store = RunningStore(tables, "-")
    store.declare_namespace(namespace, NUM_SHARDS, DatabaseCalls(STORE).get_fingerprint(namespace))
    key = TimerKey.build(namespace, "due", NUM_SHARDS)
    timer = StoredTimer(key, Revision(new_id()), now, now, now, "https://example.com/timers")
    store.put(timer, None, now)
    feeder = FeederThread(STORE, lambda cell: RunningStore(tables, cell))
    feeder.start()
    try:
        calls = ServiceCall.objects.for_tenant(tenant.tenant_id)
        wait_until(lambda: calls.filter(service_call_id=timer.revision).exists(), "the timer is fed")
        assert len(tables.members) == 1
    finally:
        feeder.stop()
        feeder.join(60)
    assert tables.members == {}
    assert {shard.owner for shard in tables.shards.values()} == {None}

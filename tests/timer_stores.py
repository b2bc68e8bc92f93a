"""A namespace whose timers are in a timer store in memory, for tests of whatever uses one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from unittest.mock import patch

from django.test import override_settings

from eventservice.db.now import db_now
from orchestration.feeder.database_calls import DatabaseCalls
from tests.contracts.timer_stores.memory_store import MemoryTables, MemoryTimerStore
from tests.factories import NamespaceFactory
from timers import cell_stores
from timers.stores.port import QualifiedNamespace
from timers.stores.store_spec import StoreSpec

STORE, NUM_SHARDS = "fleet", 4


class RunningStore(MemoryTimerStore):
    """A store whose clock goes with that of the database."""

    def read_clock(self) -> datetime:
        return db_now()


@contextmanager
def use_memory_store() -> Iterator[MemoryTables]:
    """Let `TIMER_STORES` have a store in memory, and yield its tables."""
    tables = MemoryTables()
    cell_stores.get_cell_store.cache_clear()
    try:
        with (
            override_settings(TIMER_STORES=[StoreSpec(STORE, "memory", "memory://host/tables")]),
            patch.object(cell_stores, "build_store", lambda spec, cell: RunningStore(tables, cell)),
        ):
            yield tables
    finally:
        cell_stores.get_cell_store.cache_clear()


def declare_namespace_in_store(tables: MemoryTables, tenant: Any, name: str) -> QualifiedNamespace:
    """Create a namespace whose timers are in the store."""
    NamespaceFactory(tenant=tenant, name=name, num_shards=NUM_SHARDS, store=STORE)
    namespace = QualifiedNamespace(tenant.tenant_id, name)
    fingerprint = DatabaseCalls(STORE).get_fingerprint(namespace)
    MemoryTimerStore(tables, "-").declare_namespace(namespace, NUM_SHARDS, fingerprint)
    return namespace

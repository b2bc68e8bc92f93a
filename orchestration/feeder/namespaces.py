"""Namespaces whose timers are in a timer store: the store and this cell's database must both know them.

A declaration in the store comes before the row in the database, and nothing is asked of the store within a transaction. If
the process is killed between the two, a repeat does the rest.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from django.conf import settings
from django.db import transaction

from eventservice.db.errors import retry_on_deadlock
from eventservice.kernel.errors import Conflict, DomainError, Invalid
from eventservice.kernel.findings import Finding
from eventservice.tenants import directory
from eventservice.tenants.directory import find_namespace, read_profile
from eventservice.tenants.models import DEFAULT_SHARDS, Namespace
from orchestration.feeder.fingerprints import build_fingerprint
from orchestration.feeder.store_errors import TimerStoreUnavailable, describing_store_errors
from timers.cell_stores import get_cell_store
from timers.stores.port import (
    MAX_STORED_NAMESPACE_LENGTH,
    OutcomeUnknown,
    QualifiedNamespace,
    StoreUnavailable,
    TimerStore,
)

# The code of a store's finding about its table (TimerStore.check).
TABLE_FINDING = "timer_store_table"


class TimerStoreNotPrepared(TimerStoreUnavailable):
    """The store has no table, or not all of it."""

    def __init__(self, finding: Finding) -> None:
        message = f"The timer store is not set up ({finding.text}). {finding.remedy} Nothing was changed."
        DomainError.__init__(self, "store_unavailable", message)


def declare_namespace(
    tenant_id: uuid.UUID,
    name: str,
    num_shards: int | None = None,
    store: str | None = None,
    *,
    record: Callable[[Namespace], None],
) -> tuple[Namespace, bool]:
    """Return the namespace and whether this has created it. `record` is called in the transaction that creates it.

    Raise Conflict if it exists with another number of shards or in another store, Invalid if no store has this name or the
    store cannot hold the namespace, and TimerStoreUnavailable. Without a number of shards, a namespace that another cell has
    declared in the store has the same as there.
    """
    if store is not None and find_namespace(tenant_id, name) is None:
        num_shards = _declare_in_store(tenant_id, name, num_shards, store)
    return _declare_in_database(tenant_id, name, num_shards, store, record)


@retry_on_deadlock
def _declare_in_database(
    tenant_id: uuid.UUID,
    name: str,
    num_shards: int | None,
    store: str | None,
    record: Callable[[Namespace], None],
) -> tuple[Namespace, bool]:
    with transaction.atomic():
        namespace, is_new = directory.declare_namespace(tenant_id, name, num_shards, store)
        if is_new:
            record(namespace)
    return namespace, is_new


def _declare_in_store(tenant_id: uuid.UUID, name: str, num_shards: int | None, store: str) -> int:
    """Make a store know a namespace. Return the number of shards that the namespace has in all cells."""
    _refuse_impossible(name, store)
    fingerprint = build_fingerprint(read_profile(tenant_id))
    wanted = DEFAULT_SHARDS if num_shards is None else num_shards
    with describing_store_errors(store):
        cell_store = get_cell_store(store)
        _require_table(cell_store)
        try:
            declared = cell_store.declare_namespace(QualifiedNamespace(tenant_id, name), wanted, fingerprint)
        except OutcomeUnknown as error:
            # It does not matter whether the declaration was written: a repeat finds it, or writes it.
            raise StoreUnavailable(str(error)) from error
    if num_shards not in (None, declared.num_shards):
        raise Conflict(
            "immutable",
            f"Another cell has declared namespace {name!r} in the timer store {store!r}, and its numShards is fixed at"
            f" {declared.num_shards}.",
        )
    return declared.num_shards


def _refuse_impossible(name: str, store: str) -> None:
    errors = {}
    known = [spec.name for spec in settings.TIMER_STORES]
    if not known:
        errors["store"] = "must be left out, because TIMER_STORES has no stores"
    elif store not in known:
        errors["store"] = f"must be one of {', '.join(known)}"
    if len(name) > MAX_STORED_NAMESPACE_LENGTH:
        errors["name"] = f"must have at most {MAX_STORED_NAMESPACE_LENGTH} characters in a timer store"
    if errors:
        text = "; ".join(f"{member} {rule}" for member, rule in errors.items())
        raise Invalid("invalid", f"{text}.", errors=errors)


def _require_table(store: TimerStore) -> None:
    """Raise TimerStoreNotPrepared if the table is incomplete. Some stores would accept rows without its indexes."""
    for finding in store.check():
        if finding.code == TABLE_FINDING and not finding.is_ok:
            raise TimerStoreNotPrepared(finding)

"""Set, change, delete and read durable timers, wherever their namespaces keep them.

A namespace without a timer store keeps its timers in this database: each is a call from the start (orchestration.lifecycle).
In a timer store, a timer becomes a call of this cell when it is about to be due (orchestration.feeder).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from eventservice.db.now import db_now
from eventservice.kernel.errors import Invalid
from eventservice.tenants.directory import get_profile
from orchestration import lifecycle
from orchestration.admission import refuse_full, refuse_inactive
from orchestration.commands import SubmitServiceCall
from orchestration.feeder.store_errors import describing_store_errors
from orchestration.feeder.timer_changes import get_stored_timers
from orchestration.models import ServiceCall
from orchestration.queries.calls import (
    CallSummary,
    TimerCall,
    find_timer_call,
    get_ended_timer_call,
    get_timer_call,
    list_summaries,
)
from orchestration.queries.pending_timers import build_summary, build_timer_call
from orchestration.states import TERMINAL
from orchestration.timer_callbacks import (
    build_stored_timer,
    build_timer_command,
    list_call_fields,
    list_stored_fields,
)
from timers.stores.port import Position, QualifiedNamespace, StoredTimer, TimerKey

# Pages of the store that are read for one page of a list: a store may return some that are empty.
MAX_STORE_PAGES = 20


class StoredTimerPage(NamedTuple):
    timers: Sequence[CallSummary]
    # None at the end of the list.
    after: Position | None


def find_store(tenant_id: uuid.UUID, namespace: str) -> str | None:
    """Return the timer store of a namespace, or None if it has none, or does not exist."""
    try:
        return get_profile(tenant_id).get_store(namespace)
    except Invalid:
        return None


def set_timer(command: SubmitServiceCall) -> None:
    """Set a durable timer. A pending one of the same namespace and id is overwritten."""
    tenant_id, namespace = command.tenant_id, command.namespace
    store = find_store(tenant_id, namespace)
    if store is None:
        lifecycle.set_timer(command)
        return
    refuse_inactive(tenant_id)
    refuse_full(tenant_id)
    with describing_store_errors(store):
        get_stored_timers(store).set(
            build_stored_timer(command, _count_shards(tenant_id, namespace), db_now())
        )


def change_timer(
    tenant_id: uuid.UUID, correlation_id: uuid.UUID, key: tuple[str, str], changes: Mapping[str, Any]
) -> None:
    """Change a pending timer, given its namespace and id, and arguments of `build_timer_command`. Raise NotFound."""

    def build(fields: Mapping[str, Any]) -> SubmitServiceCall:
        return build_timer_command(tenant_id, correlation_id, key, **{**fields, **changes})

    def build_from_call(call: ServiceCall) -> SubmitServiceCall:
        return build(list_call_fields(call))

    def build_from_stored(timer: StoredTimer) -> StoredTimer:
        command = build(list_stored_fields(timer))
        changed = build_stored_timer(command, _count_shards(tenant_id, command.namespace), db_now())
        return replace(changed, created_at=timer.created_at)

    store = find_store(tenant_id, key[0])
    if store is None:
        lifecycle.change_timer(tenant_id, *key, build_from_call)
        return
    refuse_inactive(tenant_id)
    refuse_full(tenant_id)
    with describing_store_errors(store):
        get_stored_timers(store).change(_build_key(tenant_id, *key), build_from_stored)


def delete_timer(tenant_id: uuid.UUID, namespace: str, timer_id: str) -> None:
    """Delete a pending timer; raise NotFound. In this database, a callback under way may finish."""
    store = find_store(tenant_id, namespace)
    if store is None:
        lifecycle.delete_timer(tenant_id, namespace, timer_id)
        return
    with describing_store_errors(store):
        get_stored_timers(store).delete(_build_key(tenant_id, namespace, timer_id))


def get_timer(tenant_id: uuid.UUID, namespace: str, timer_id: str) -> TimerCall:
    """Return the pending timer, or else the last call of it that succeeded or failed; raise NotFound."""
    store = find_store(tenant_id, namespace)
    if store is None:
        return get_timer_call(tenant_id, namespace, timer_id)
    timer = _find_stored(store, tenant_id, namespace, timer_id)
    if timer is None:
        return get_ended_timer_call(tenant_id, namespace, timer_id)
    call = find_timer_call(tenant_id, timer.revision)
    if call is None:
        return build_timer_call(timer)
    # The last attempt has ended, and the timer is about to be removed; or the call follows the timer.
    return call if call.status in TERMINAL else replace(call, due_at=timer.execute_at)


def list_stored_timers(
    tenant_id: uuid.UUID, namespace: str, after: Position | None, limit: int
) -> StoredTimerPage:
    """Return pending timers of a namespace with a timer store, in the order of shards and ids."""
    store = get_profile(tenant_id).stores[namespace]
    with describing_store_errors(store):
        timers, following = _scan(store, QualifiedNamespace(tenant_id, namespace), after, limit)
    calls = list_summaries([(tenant_id, timer.revision) for timer in timers])
    return StoredTimerPage(list(_join(timers, calls)), following)


def list_stored_timer(tenant_id: uuid.UUID, namespace: str, timer_id: str) -> Sequence[CallSummary]:
    """Return the pending timer with this id in a namespace with a timer store, or nothing."""
    timer = _find_stored(get_profile(tenant_id).stores[namespace], tenant_id, namespace, timer_id)
    if timer is None:
        return []
    return list(_join([timer], list_summaries([(tenant_id, timer.revision)])))


def _find_stored(store: str, tenant_id: uuid.UUID, namespace: str, timer_id: str) -> StoredTimer | None:
    with describing_store_errors(store):
        return get_stored_timers(store).find(_build_key(tenant_id, namespace, timer_id))


def _scan(
    store: str, namespace: QualifiedNamespace, after: Position | None, limit: int
) -> tuple[list[StoredTimer], Position | None]:
    num_shards = _count_shards(namespace.tenant_id, namespace.name)
    found: list[StoredTimer] = []
    for _ in range(MAX_STORE_PAGES):
        page = get_stored_timers(store).scan(namespace, num_shards, after, limit - len(found))
        found += page.timers
        after = page.after
        if after is None or len(found) == limit:
            break
    return found, after


def _join(timers: Sequence[StoredTimer], calls: Sequence[CallSummary]) -> Iterator[CallSummary]:
    """Yield each timer as its call in this cell, if there is one. Calls that have ended are left out."""
    by_id = {call.service_call_id: call for call in calls}
    for timer in timers:
        call = by_id.get(timer.revision)
        if call is None:
            yield build_summary(timer)
        elif call.status not in TERMINAL:
            yield replace(call, due_at=timer.execute_at)


def _build_key(tenant_id: uuid.UUID, namespace: str, timer_id: str) -> TimerKey:
    num_shards = _count_shards(tenant_id, namespace)
    return TimerKey.build(QualifiedNamespace(tenant_id, namespace), timer_id, num_shards)


def _count_shards(tenant_id: uuid.UUID, namespace: str) -> int:
    return get_profile(tenant_id).get_num_shards(namespace)

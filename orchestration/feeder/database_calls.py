"""The calls of this cell, in its relational database: the implementation of `CellCalls`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime

from eventservice.db.now import db_now
from eventservice.kernel.errors import DomainError
from eventservice.tenants.directory import get_profile
from orchestration import lifecycle
from orchestration.feeder.fingerprints import build_fingerprint
from orchestration.feeder.ports import WaitingCall
from orchestration.lifecycle import timer_marks
from orchestration.lifecycle.timer_marks import Mark
from orchestration.models import ServiceCall
from orchestration.queries.calls import group_by_tenant
from orchestration.states import Status
from timers.membership import has_live_engines
from timers.pause import find_pause
from timers.persistence import timer_persistence
from timers.stores.encoding import split_batches
from timers.stores.port import FORMAT, QualifiedNamespace, Revision, StoredTimer, TimerKey

# A tenant may have this many timers ready for each attempt that it may have in flight.
READY_PER_ATTEMPT = 10
# How many calls one query names.
MAX_REVISIONS = 1000


class DatabaseCalls:
    """The calls whose timers are in one store."""

    def __init__(self, store: str) -> None:
        self._store = store

    def read_now(self) -> datetime:
        return db_now()

    def is_paused(self) -> bool:
        return find_pause() is not None

    def knows(self, timer: StoredTimer) -> bool:
        namespace = timer.key.namespace
        try:
            profile = get_profile(namespace.tenant_id)
            if timer.format != FORMAT or profile.get_store(namespace.name) != self._store:
                return False
            num_shards = profile.get_num_shards(namespace.name)
        except DomainError:  # the tenant or the namespace does not exist
            return False
        return TimerKey.build(namespace, timer.key.timer_id, num_shards) == timer.key

    def get_fingerprint(self, namespace: QualifiedNamespace) -> Mapping[str, str]:
        try:
            return build_fingerprint(get_profile(namespace.tenant_id))
        except DomainError:
            return {}

    def find_room(self, tenant_id: uuid.UUID, until: datetime) -> int:
        limit = READY_PER_ATTEMPT * get_profile(tenant_id).max_in_flight
        return max(0, limit - timer_persistence.count_due(tenant_id, until, limit))

    def find_busy(self, timers: Sequence[StoredTimer]) -> set[Revision]:
        busy: set[Revision] = set()
        for tenant_id, revisions in group_by_tenant(_list_keys(timers)).items():
            calls = ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id__in=revisions)
            states = calls.values_list("service_call_id", "status", "start_before")
            busy |= {
                Revision(revision)
                for revision, status, start_before in states
                if status == Status.RUNNING or (status == Status.SCHEDULED and start_before is not None)
            }
            marked = timer_marks.find_marked(tenant_id, revisions)
            busy |= {Revision(revision) for revision, _ in marked}
        return busy

    def select_unfed(self, timers: Sequence[StoredTimer]) -> list[StoredTimer]:
        fed: set[uuid.UUID] = set()
        numbers: dict[uuid.UUID, int] = {timer.revision: timer.takes for timer in timers}
        for tenant_id, revisions in group_by_tenant(_list_keys(timers)).items():
            calls = ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id__in=revisions)
            fed |= {
                revision
                for revision, take in calls.values_list("service_call_id", "timer_take")
                if take is not None and take >= numbers[revision]
            }
        return [timer for timer in timers if timer.revision not in fed]

    def find_unstarted(self, taken: Sequence[tuple[uuid.UUID, Revision]]) -> set[Revision]:
        unstarted: set[Revision] = set()
        for tenant_id, revisions in group_by_tenant(taken).items():
            for batch in split_batches(revisions, MAX_REVISIONS):
                calls = ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id__in=batch)
                ready = calls.filter(status=Status.SCHEDULED, start_before__isnull=False)
                unstarted |= set(map(Revision, ready.values_list("service_call_id", flat=True)))
        return unstarted

    def feed(self, timers: Sequence[StoredTimer]) -> int:
        return lifecycle.feed(self._store, timers)

    def release_ready(self, limit: int) -> int:
        return 0 if has_live_engines() else lifecycle.release_ready(self._store, limit)

    def list_marks(self, limit: int) -> list[Mark]:
        return timer_marks.list_marks(self._store, limit)

    def delete_marks(self, marks: Sequence[Mark]) -> None:
        timer_marks.delete_marks(marks)

    def list_waiting(self, due_before: datetime, limit: int) -> list[WaitingCall]:
        return [_build_waiting(call) for call in lifecycle.list_waiting(self._store, due_before, limit)]

    def follow_timer(self, call: WaitingCall, due_at: datetime) -> None:
        lifecycle.follow_timer(call.key.namespace.tenant_id, call.revision, call.take, due_at)

    def close_waiting(self, calls: Sequence[WaitingCall]) -> None:
        for call in calls:
            lifecycle.close_waiting(call.key.namespace.tenant_id, call.revision, call.take)


def _build_waiting(call: ServiceCall) -> WaitingCall:
    num_shards = get_profile(call.tenant_id).get_num_shards(call.namespace)
    namespace = QualifiedNamespace(call.tenant_id, call.namespace)
    key = TimerKey.build(namespace, call.external_id or "", num_shards)
    return WaitingCall(key, Revision(call.service_call_id), call.timer_take or 0)


def _list_keys(timers: Sequence[StoredTimer]) -> list[tuple[uuid.UUID, uuid.UUID]]:
    return [(timer.key.namespace.tenant_id, timer.revision) for timer in timers]

"""The changes of clients and operators to one call, whether its timer is in this database or in a timer store.

The call of a timer in a store only follows the timer: while it is pending, it is changed through the store. If the timer
is about to fire, the change is refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from eventservice.db.now import db_now
from eventservice.kernel.errors import Conflict, NotFound
from eventservice.tenants.directory import get_profile
from orchestration import lifecycle
from orchestration.feeder.store_errors import describing_store_errors
from orchestration.feeder.timer_changes import get_stored_timers
from orchestration.models import ServiceCall
from orchestration.states import LIVE, Status
from timers.stores.port import QualifiedNamespace, Revision, TimerKey, round_up


class _PendingTimer(NamedTuple):
    """The timer in a store to which a live call belongs."""

    store: str
    key: TimerKey
    revision: Revision
    # The last take that the call knows.
    take: int


def cancel(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Status:
    """Cancel a call and return its status. A Running one stays Running until its attempt ends."""
    if _delete_timer(tenant_id, service_call_id):
        return Status.CANCELED
    return lifecycle.cancel(tenant_id, service_call_id)


def delete(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> None:
    """Delete a call that is not Running with its tags, timer, attempts and published events."""
    _delete_timer(tenant_id, service_call_id)
    lifecycle.delete(tenant_id, service_call_id)


def reschedule(tenant_id: uuid.UUID, service_call_id: uuid.UUID, due_at: datetime | None) -> None:
    """Give a Scheduled call another due time; None means now."""
    timer = _find_pending_timer(tenant_id, service_call_id)
    if timer is None:
        lifecycle.reschedule(tenant_id, service_call_id, due_at)
    else:
        _move_timer(tenant_id, service_call_id, timer, due_at or db_now())


def _move_timer(
    tenant_id: uuid.UUID, service_call_id: uuid.UUID, timer: _PendingTimer, due_at: datetime
) -> None:
    due_at = round_up(due_at)
    try:
        with describing_store_errors(timer.store):
            get_stored_timers(timer.store).move(timer.key, timer.revision, due_at)
    except NotFound:
        lifecycle.close_waiting(tenant_id, service_call_id, timer.take)
        raise Conflict("wrong_state", "The timer of this call has been deleted or set again.") from None
    lifecycle.reschedule_waiting(tenant_id, service_call_id, timer.take, due_at)


def edit(
    tenant_id: uuid.UUID,
    service_call_id: uuid.UUID,
    *,
    name: str | None = None,
    tags: Collection[str] | None = None,
    due_at: datetime | None = None,
) -> None:
    """Change a call. What is None stays as it is, and so does the tag of favorites."""
    timer = None if due_at is None else _find_pending_timer(tenant_id, service_call_id)
    if timer is not None and due_at is not None:
        _move_timer(tenant_id, service_call_id, timer, max(due_at, db_now()))
        due_at = None
    lifecycle.edit(tenant_id, service_call_id, name=name, tags=tags, due_at=due_at)


def _delete_timer(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> bool:
    """Delete the timer in a store to which a live call belongs, and thereby cancel the call.

    Return False if there is no such timer: then the call is all that there is.
    """
    timer = _find_pending_timer(tenant_id, service_call_id)
    if timer is None:
        return False
    try:
        with describing_store_errors(timer.store):
            get_stored_timers(timer.store).delete(timer.key, timer.revision)
    except NotFound:
        return False
    return True


def _find_pending_timer(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> _PendingTimer | None:
    profile = get_profile(tenant_id)
    if not profile.stores:
        return None
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(
        service_call_id=service_call_id, status__in=LIVE, timer_take__isnull=False
    )
    found = calls.values_list("namespace", "external_id", "timer_take").first()
    if found is None:
        return None
    namespace, timer_id, take = found
    num_shards = profile.get_num_shards(namespace)
    key = TimerKey.build(QualifiedNamespace(tenant_id, namespace), timer_id or "", num_shards)
    return _PendingTimer(profile.stores[namespace], key, Revision(service_call_id), take or 0)

"""The commands of tenants and operators on one call."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

from django.db import transaction

from eventservice.db.bulk import insert_rows
from eventservice.db.errors import retry_on_deadlock
from eventservice.db.now import db_now, to_rfc3339
from eventservice.kernel.errors import Conflict, NotFound
from execution.redaction import decrypt_headers
from orchestration.admission import refuse_inactive
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.events import EventType
from orchestration.lifecycle.rows import build_event, lock_call, lock_call_and_timer, move, require_status
from orchestration.lifecycle.submission import Submitted, submit
from orchestration.models import ServiceCall, ServiceCallTag
from orchestration.retries import RetryPolicy
from orchestration.states import FAVORITE, MAX_TAGS, TERMINAL, Delivery, ResponseContract, Status
from outbox.retention import delete_published_events
from outbox.writer import append_events
from timers.persistence import timer_persistence
from timers.port import NewDueTime


@retry_on_deadlock
def cancel(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Status:
    """Cancel a call and return its status. A Scheduled call is Canceled at once. A Running one stays Running until its
    attempt ends, because the request may have been sent."""
    with transaction.atomic():
        row = lock_call_and_timer(tenant_id, service_call_id)
        if row.status == Status.RUNNING:
            ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id).update(
                cancel_requested=True
            )
            return Status.RUNNING
        require_status(row, Status.SCHEDULED, "be canceled", or_status=Status.RUNNING)
        timer_persistence.unschedule_timer(tenant_id, service_call_id)
        now = db_now()
        move(Status.SCHEDULED, Status.CANCELED, "finished_at = {finished_at}", [(row, (now,))])
        append_events([build_event(row, 0, EventType.CANCELED, row.identity_facts, now)])
    return Status.CANCELED


@retry_on_deadlock
def reschedule(tenant_id: uuid.UUID, service_call_id: uuid.UUID, due_at: datetime | None) -> None:
    """Give a Scheduled call another due time; None means now."""
    with transaction.atomic():
        row = lock_call_and_timer(tenant_id, service_call_id)
        require_status(row, Status.SCHEDULED, "be run now" if due_at is None else "be rescheduled")
        now = db_now()
        due_at = due_at or now
        timer_persistence.rearm_timers([NewDueTime(tenant_id, service_call_id, due_at)], now)
        move(Status.SCHEDULED, Status.SCHEDULED, "due_at = {due_at}", [(row, (due_at,))])
        append_events([build_event(row, 0, EventType.RESCHEDULED, {"dueAt": to_rfc3339(due_at)}, now)])


@retry_on_deadlock
def edit(
    tenant_id: uuid.UUID,
    service_call_id: uuid.UUID,
    *,
    name: str | None = None,
    tags: Collection[str] | None = None,
    due_at: datetime | None = None,
) -> None:
    """Change a call. What is None stays as it is, and so does the tag of favorites."""
    with transaction.atomic():
        if due_at is not None:
            reschedule(tenant_id, service_call_id, max(due_at, db_now()))
        lock_call(tenant_id, service_call_id)
        if name is not None:
            ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id).update(
                name=name
            )
        if tags is not None:
            _select_tags(tenant_id, service_call_id).exclude(tag__in=[*tags, FAVORITE]).delete()
            _add_tags(tenant_id, service_call_id, tags)


def add_tag(tenant_id: uuid.UUID, service_call_id: uuid.UUID, tag: str) -> bool:
    """Tag a call. Return False if it had the tag already."""
    with transaction.atomic():
        lock_call(tenant_id, service_call_id)
        others = _select_tags(tenant_id, service_call_id).exclude(tag__in=[tag, FAVORITE])
        if tag != FAVORITE and others.count() >= MAX_TAGS:
            raise Conflict("too_many_tags", f"A call has at most {MAX_TAGS} tags.")
        return _add_tags(tenant_id, service_call_id, [tag])


def remove_tag(tenant_id: uuid.UUID, service_call_id: uuid.UUID, tag: str) -> bool:
    """Remove a tag. Return False if the call did not have it."""
    with transaction.atomic():
        lock_call(tenant_id, service_call_id)
        removed, _ = _select_tags(tenant_id, service_call_id).filter(tag=tag).delete()
        return bool(removed)


def _select_tags(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Any:
    return ServiceCallTag.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id)


def _add_tags(tenant_id: uuid.UUID, service_call_id: uuid.UUID, tags: Iterable[str]) -> bool:
    there = set(_select_tags(tenant_id, service_call_id).values_list("tag", flat=True))
    rows = [(tenant_id, service_call_id, tag) for tag in sorted(set(tags) - there)]
    return bool(insert_rows(ServiceCallTag, ("tenant_id", "service_call_id", "tag"), rows))


def replay(
    tenant_id: uuid.UUID,
    service_call_id: uuid.UUID,
    correlation_id: uuid.UUID,
    idempotency_key: str | None = None,
) -> Submitted:
    """Submit a new call with the request of one that has ended, due now. It names its origin in `replay_of`."""
    refuse_inactive(tenant_id)
    calls = ServiceCall.objects.for_tenant(tenant_id)
    if idempotency_key is not None:
        made = calls.filter(idempotency_key=idempotency_key, replay_of=service_call_id)
        for made_before in made.values_list("service_call_id", flat=True):
            return Submitted(made_before, is_repeat=True)
    origin = calls.filter(service_call_id=service_call_id).first()
    if origin is None:
        raise NotFound("service call")
    if origin.status not in TERMINAL:
        raise Conflict(
            "wrong_state", f"A call that is {origin.status} cannot be replayed: it must have ended."
        )
    spec = origin.request_spec
    (submitted,) = submit(
        [
            SubmitServiceCall(
                tenant_id=tenant_id,
                name=origin.name,
                request=RequestSpec(
                    spec["method"], spec["url"], decrypt_headers(spec["headers"]), spec["body"]
                ),
                tags=frozenset(_select_tags(tenant_id, service_call_id).values_list("tag", flat=True))
                - {FAVORITE},
                namespace=origin.namespace,
                idempotency_key=idempotency_key,
                correlation_id=correlation_id,
                retry_policy=RetryPolicy.from_stored(origin.retry_policy) if origin.retry_policy else None,
                timeout_seconds=origin.timeout_seconds,
                response_contract=ResponseContract(origin.response_contract),
                delivery=Delivery(origin.delivery),
                replay_of=service_call_id,
            )
        ]
    )
    return submitted


@retry_on_deadlock
def retry(tenant_id: uuid.UUID, service_call_id: uuid.UUID, correlation_id: uuid.UUID) -> Submitted:
    """Replay a call unless a replay of it exists that was not canceled: of two who retry it, only one makes a call."""
    with transaction.atomic():
        lock_call(tenant_id, service_call_id)
        replays = ServiceCall.objects.for_tenant(tenant_id).filter(replay_of=service_call_id)
        if replays.exclude(status=Status.CANCELED).exists():
            raise Conflict("replayed_before", "It has been replayed before.")
        return replay(tenant_id, service_call_id, correlation_id)


@retry_on_deadlock
def delete(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> None:
    """Delete a call that is not Running with its tags, timer, attempts and published events.

    The last event says so. It is published after those that have not been published yet.
    """
    with transaction.atomic():
        timer_persistence.unschedule_timer(tenant_id, service_call_id)
        row = lock_call(tenant_id, service_call_id)
        if row.status == Status.RUNNING:
            raise Conflict("wrong_state", "A call that is Running cannot be deleted: cancel it, or wait.")
        ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id).delete()
        delete_published_events(tenant_id, service_call_id)
        facts = {**row.identity_facts, "lastStatus": row.status}
        append_events([build_event(row, 0, EventType.DELETED, facts, db_now())])

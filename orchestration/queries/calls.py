"""Read single service calls, or several by their ids. Lists by filter are in orchestration.queries.call_lists."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Case, F, QuerySet, When
from django.db.models.fields.json import KeyTextTransform, KeyTransform

from eventservice.db.sql import Unindexed
from eventservice.kernel.errors import NotFound
from execution.redaction import mask_query
from execution.url_rules import find_origin
from orchestration.models import ServiceCall, ServiceCallTag
from orchestration.retries import RetryPolicy
from orchestration.states import Status

# How many ids one statement may name.
CHUNK_SIZE = 1000
DEFAULT_MAX_ATTEMPTS = RetryPolicy().max_attempts

CallKey = tuple[uuid.UUID, uuid.UUID]  # tenant id, service call id


@dataclass(slots=True)
class CallView:
    """The columns that every view of a call has, under the columns' names.

    Treat it as immutable. It is not frozen, because creating a frozen dataclass takes seven times as long.
    """

    tenant_id: uuid.UUID
    service_call_id: uuid.UUID
    name: str
    status: str
    submitted_at: datetime
    due_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    outcome_meta: dict[str, Any] | None
    namespace: str
    external_id: str | None
    host: str
    correlation_id: uuid.UUID
    replay_of: uuid.UUID | None
    response_contract: str
    attempt: int
    cancel_requested: bool

    @property
    def key(self) -> CallKey:
        return self.tenant_id, self.service_call_id

    def name_target(self, url: str) -> str:
        """Return the host for people, with the port of the URL unless that is the default of its scheme."""
        origin = find_origin(url, self.host)
        return origin.authority if origin else self.host


@dataclass(slots=True)
class CallSummary(CallView):
    """A call as a list shows it: without headers and body."""

    method: str
    url: str
    execute_at: str | None  # the time that a durable timer was set to
    max_attempts: int = field(kw_only=True)
    tags: Sequence[str] = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.url:
            self.url = mask_query(self.url)

    @property
    def target(self) -> str:
        return self.name_target(self.url or "")


@dataclass(slots=True)
class TimerCall(CallView):
    """The call of a durable timer, with what the timer was set to."""

    request_spec: dict[str, Any]
    retry_policy: dict[str, Any] | None
    timeout_seconds: float


@dataclass(slots=True)
class CallDetails(CallView):
    """A whole call. Secret headers in `request_spec` are encrypted."""

    request_spec: dict[str, Any]
    retry_policy: dict[str, Any] | None
    timeout_seconds: float
    idempotency_key: str | None
    delivery: str
    interruptions: int
    tags: Sequence[str] = field(kw_only=True)

    @property
    def target(self) -> str:
        return self.name_target(self.request_spec["url"])


class CallReplay(NamedTuple):
    """A call that repeats another one."""

    service_call_id: uuid.UUID
    status: str
    submitted_at: datetime
    correlation_id: uuid.UUID
    replay_of: uuid.UUID


def _list_columns(view: type[CallView], *without: str) -> list[str]:
    return [column.name for column in fields(view) if column.name not in without]


VIEW_COLUMNS = _list_columns(CallView)
TIMER_COLUMNS = _list_columns(TimerCall)
DETAIL_COLUMNS = _list_columns(CallDetails, "tags")


# --- one call ---------------------------------------------------------------------------------------------------


def get_call(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> CallDetails:
    """Return the call; raise NotFound."""
    row = (
        _select_calls(tenant_id).filter(service_call_id=service_call_id).values_list(*DETAIL_COLUMNS).first()
    )
    if row is None:
        raise NotFound("service call")
    return CallDetails(*row, tags=list_tags(tenant_id, [service_call_id]).get(service_call_id, []))


def get_status(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Status:
    """Return the call's status; raise NotFound."""
    call = _select_calls(tenant_id).filter(service_call_id=service_call_id)
    status = call.values_list("status", flat=True).first()
    if status is None:
        raise NotFound("service call")
    return Status(status)


def get_timer_call(tenant_id: uuid.UUID, namespace: str, timer_id: str) -> TimerCall:
    """Return the live call of a durable timer, or else the last that succeeded or failed; raise NotFound."""
    live = _select_calls(tenant_id).filter(namespace=namespace, live_external_id=timer_id)
    row = live.values_list(*TIMER_COLUMNS).first()
    return TimerCall(*row) if row else get_ended_timer_call(tenant_id, namespace, timer_id)


def get_ended_timer_call(tenant_id: uuid.UUID, namespace: str, timer_id: str) -> TimerCall:
    """Return the last call of a durable timer that succeeded or failed; raise NotFound."""
    calls = _select_calls(tenant_id).filter(namespace=namespace, external_id=timer_id)
    ended = calls.filter(status__in=[Status.SUCCEEDED, Status.FAILED])
    row = ended.order_by("-submitted_at", "-service_call_id").values_list(*TIMER_COLUMNS).first()
    if row is None:
        raise NotFound("timer")
    return TimerCall(*row)


def find_timer_call(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> TimerCall | None:
    """Return the call of a durable timer by the id of the call."""
    row = _select_calls(tenant_id).filter(service_call_id=service_call_id).values_list(*TIMER_COLUMNS).first()
    return TimerCall(*row) if row else None


def list_timer_calls(tenant_id: uuid.UUID, namespace: str, timer_id: str, limit: int) -> list[CallSummary]:
    """Return the calls that a durable timer's id has had, the latest first."""
    calls = _select_calls(tenant_id).filter(namespace=namespace, external_id=timer_id)
    latest = calls.order_by(Unindexed(F("submitted_at")).desc(), Unindexed(F("service_call_id")).desc())
    ids = latest.values_list("service_call_id", flat=True)[:limit]
    return list_summaries([(tenant_id, service_call_id) for service_call_id in ids])


def find_call_by_idempotency_key(tenant_id: uuid.UUID, idempotency_key: str) -> uuid.UUID | None:
    """Return the id of the call that was submitted with this key."""
    calls = _select_calls(tenant_id).filter(idempotency_key=idempotency_key)
    found: uuid.UUID | None = calls.values_list("service_call_id", flat=True).first()
    return found


def list_replays(tenant_id: uuid.UUID, service_call_id: uuid.UUID, limit: int) -> list[CallReplay]:
    """Return the replays of a call, the latest first."""
    replays = _select_calls(tenant_id).filter(replay_of=service_call_id)
    # Without Unindexed, SQLite walks all of the tenant's calls in this order.
    latest = replays.order_by(Unindexed(F("service_call_id")).desc())
    return [CallReplay(*row) for row in latest.values_list(*CallReplay._fields)[:limit]]


def list_replays_of(
    tenant_id: uuid.UUID, service_call_ids: Sequence[uuid.UUID], limit: int
) -> list[CallReplay]:
    """Return the latest replays of several calls, the latest first."""
    replays = _select_calls(tenant_id).filter(replay_of__in=service_call_ids)
    latest = replays.order_by(Unindexed(F("service_call_id")).desc())
    return [CallReplay(*row) for row in latest.values_list(*CallReplay._fields)[:limit]]


# --- several ----------------------------------------------------------------------------------------------------


def count_pending(tenant_id: uuid.UUID, max_count: int) -> int:
    """Count the tenant's Scheduled calls in an index alone, and stop at `max_count`."""
    pending = _select_calls(tenant_id).filter(status=Status.SCHEDULED)
    return pending.order_by().values_list("tenant_id")[:max_count].count()


def list_tags(tenant_id: uuid.UUID, service_call_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, list[str]]:
    """Return the tags of each call that has any."""
    tags: dict[uuid.UUID, list[str]] = {}
    rows = ServiceCallTag.objects.for_tenant(tenant_id).filter(service_call_id__in=service_call_ids)
    for service_call_id, tag in rows.values_list("service_call_id", "tag"):
        tags.setdefault(service_call_id, []).append(tag)
    return tags


def list_replayed(keys: Sequence[CallKey]) -> set[CallKey]:
    """Return those of the calls that have a replay that was not canceled."""
    found: set[CallKey] = set()
    for tenant_id, ids in group_by_tenant(keys).items():
        calls = _select_calls(tenant_id).exclude(status=Status.CANCELED)
        for start in range(0, len(ids), CHUNK_SIZE):
            replays = calls.filter(replay_of__in=ids[start : start + CHUNK_SIZE])
            origins = replays.values_list("replay_of", flat=True)
            found |= {(tenant_id, origin) for origin in origins if origin is not None}
    return found


def list_statuses(keys: Sequence[CallKey]) -> dict[CallKey, str]:
    """Return the status of each of the calls that exists."""
    statuses: dict[CallKey, str] = {}
    for tenant_id, ids in group_by_tenant(keys).items():
        for start in range(0, len(ids), CHUNK_SIZE):
            calls = _select_calls(tenant_id).filter(service_call_id__in=ids[start : start + CHUNK_SIZE])
            statuses |= {
                (tenant_id, one): status for one, status in calls.values_list("service_call_id", "status")
            }
    return statuses


def list_summaries(keys: Sequence[CallKey]) -> list[CallSummary]:
    """Return the calls in the order of their keys, without those that no longer exist."""
    calls: dict[CallKey, CallSummary] = {}
    for tenant_id, ids in group_by_tenant(keys).items():
        for call in _read_summaries(tenant_id, ids):
            calls[tenant_id, call.service_call_id] = call
    return [calls[key] for key in keys if key in calls]


def group_by_tenant(keys: Iterable[CallKey]) -> dict[uuid.UUID, list[uuid.UUID]]:
    """Return the service call ids of each tenant."""
    grouped: dict[uuid.UUID, list[uuid.UUID]] = {}
    for tenant_id, service_call_id in keys:
        grouped.setdefault(tenant_id, []).append(service_call_id)
    return grouped


# Only a durable timer's body says when it is to be executed. Other bodies are not read: they may be large.
_EXECUTE_AT = Case(
    When(external_id__isnull=False, then=KeyTextTransform("executeAt", KeyTransform("body", "request_spec")))
)


def _read_summaries(tenant_id: uuid.UUID, ids: list[uuid.UUID]) -> list[CallSummary]:
    rows = (
        _select_calls(tenant_id)
        .filter(service_call_id__in=ids)
        .values_list(
            *VIEW_COLUMNS,
            KeyTextTransform("method", "request_spec"),
            KeyTextTransform("url", "request_spec"),
            _EXECUTE_AT,
            KeyTransform("max_attempts", "retry_policy"),
        )
    )
    tags = list_tags(tenant_id, ids)
    return [
        CallSummary(*row, max_attempts=max_attempts or DEFAULT_MAX_ATTEMPTS, tags=tags.get(row[1], []))
        for *row, max_attempts in rows
    ]


def _select_calls(tenant_id: uuid.UUID) -> QuerySet[ServiceCall]:
    return ServiceCall.objects.for_tenant(tenant_id)

"""The attempt log: a row is opened before its request is sent, and closed when the outcome is known."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Count, QuerySet, Sum

from eventservice.db.bulk import insert_rows, update_rows
from eventservice.db.sql import StoredBytes
from execution.models import HttpExecution
from execution.outcome import Errored, ErrorKind, Outcome, Responded
from execution.redaction import mask_response_headers

_OPENED_COLUMNS = (
    "tenant_id", "service_call_id", "execution_id", "attempt", "node", "started_at",
    "request_url", "request_method", "request_headers", "request_body",
)  # fmt: skip

_SET_OUTCOME = (
    "finished_at = {finished_at}, response_status = {response_status}, response_headers = {response_headers},"
    " response_body = {response_body}, response_size = {response_size}, error_kind = {error_kind},"
    " error_message = {error_message}, latency_ms = {latency_ms}, phases = {phases}"
)
_IS_ATTEMPT = (
    "tenant_id = {tenant_id} AND service_call_id = {service_call_id} AND execution_id = {execution_id}"
)

MAX_LOGGED_BODY_LENGTH = 64 * 1024

# A call may have any number of attempts. A list shows this many of the first and of the last ones.
FIRST_LISTED, LAST_LISTED = 4, 100
_HEAVY_COLUMNS = ("request_headers", "request_body", "response_headers", "response_body")


class AttemptKey(NamedTuple):
    tenant_id: uuid.UUID
    service_call_id: uuid.UUID
    execution_id: uuid.UUID


class OpenedAttempt(NamedTuple):
    key: AttemptKey
    attempt: int
    node: uuid.UUID
    url: str
    method: str
    headers: Mapping[str, str]  # masked: the log must not contain stored secrets
    body: str | None


def open_attempts(attempts: Iterable[OpenedAttempt], now: datetime) -> None:
    insert_rows(
        HttpExecution,
        _OPENED_COLUMNS,
        [
            (
                a.key.tenant_id, a.key.service_call_id, a.key.execution_id, a.attempt, a.node, now,
                a.url, a.method, dict(a.headers), _to_storable_text(a.body, MAX_LOGGED_BODY_LENGTH),
            )
            for a in attempts
        ],
    )  # fmt: skip


def close_attempts(ended: Iterable[tuple[AttemptKey, Outcome]], now: datetime) -> None:
    update_rows(
        HttpExecution,
        _SET_OUTCOME,
        _IS_ATTEMPT,
        [(now, *_to_outcome_values(outcome), *key) for key, outcome in ended],
    )


def interrupt_attempts(keys: Iterable[AttemptKey], now: datetime) -> None:
    """Close attempts whose outcome is unknown. Those that were closed in the meantime keep their outcome."""
    update_rows(
        HttpExecution,
        "finished_at = {finished_at}, error_kind = {error_kind}, error_message = {error_message}",
        f"{_IS_ATTEMPT} AND finished_at IS NULL",
        [
            (
                now,
                ErrorKind.INTERRUPTED.value,
                "The process that made this attempt ended before it recorded an outcome.",
                *key,
            )
            for key in keys
        ],
    )


def list_orphaned_attempts(
    list_node_ids: Callable[[], Collection[uuid.UUID]], limit: int
) -> list[AttemptKey]:
    """Return open attempts of nodes that do not exist any more.

    `list_node_ids` is called after the attempts are read, so that a node that has just joined is not taken for one that
    is gone.
    """
    in_progress = HttpExecution.across_tenants.filter(finished_at=None)
    gone = set(in_progress.values_list("node", flat=True).distinct()) - {*list_node_ids()}
    if not gone:
        return []
    orphaned = in_progress.filter(node__in=gone)
    return [
        AttemptKey(*key)
        for key in orphaned.values_list("tenant_id", "service_call_id", "execution_id")[:limit]
    ]


def filter_orphaned_attempts(
    keys: Iterable[AttemptKey], list_node_ids: Callable[[], Collection[uuid.UUID]]
) -> list[AttemptKey]:
    """Return those of the attempts that are still open and belong to no node."""
    keys = set(keys)
    orphaned = []
    for tenant_id, of_tenant in _group_by_tenant(keys).items():
        rows = HttpExecution.objects.for_tenant(tenant_id).filter(
            service_call_id__in=[key.service_call_id for key in of_tenant], finished_at=None
        )
        found = list(rows.values_list("service_call_id", "execution_id", "node"))
        orphaned += [(AttemptKey(tenant_id, call, attempt), node) for call, attempt, node in found]
    nodes = {*list_node_ids()}
    return [key for key, node in orphaned if key in keys and node not in nodes]


def _group_by_tenant(keys: Iterable[AttemptKey]) -> dict[uuid.UUID, list[AttemptKey]]:
    by_tenant = defaultdict(list)
    for key in sorted(keys):
        by_tenant[key.tenant_id].append(key)
    return by_tenant


def assign_attempts(keys: Iterable[AttemptKey], node: uuid.UUID) -> None:
    """Give open attempts to another node."""
    update_rows(
        HttpExecution,
        "node = {node}",
        f"{_IS_ATTEMPT} AND finished_at IS NULL",
        [(node, *key) for key in keys],
    )


def drop_attempts_of(nodes: Collection[uuid.UUID], keys: Sequence[AttemptKey]) -> list[AttemptKey]:
    """Return the attempts that none of these nodes has in progress."""
    if not nodes or not keys:
        return [*keys]
    in_progress = HttpExecution.across_tenants.filter(finished_at=None, node__in=nodes)
    theirs = set(in_progress.values_list("execution_id", flat=True))
    return [key for key in keys if key.execution_id not in theirs]


def measure_attempts(tenant_id: uuid.UUID) -> tuple[int, int]:
    """Return how many attempts of a tenant are logged, and the size of their bodies in bytes. This reads all of them."""
    bodies = StoredBytes("request_body") + StoredBytes("response_body")
    found = HttpExecution.objects.for_tenant(tenant_id).aggregate(count=Count("*"), size=Sum(bodies))
    return found["count"], found["size"] or 0


def _to_outcome_values(outcome: Outcome) -> tuple[Any, ...]:
    times = (outcome.timings.total_ms, outcome.timings.phases)
    match outcome:
        case Responded():
            headers = mask_response_headers(outcome.headers)
            body = _to_storable_text(outcome.body.decode(errors="replace"))
            return outcome.status, headers, body, outcome.body_size, None, None, *times
        case Errored():
            return None, None, None, None, outcome.kind.value, outcome.message, *times


def _to_storable_text(text: str | None, max_length: int | None = None) -> str | None:
    """Return the text truncated, and without the NUL characters that PostgreSQL cannot store."""
    return None if text is None else text[:max_length].replace("\0", "\ufffd")


def list_attempts_after(
    tenant_id: uuid.UUID, service_call_id: uuid.UUID, number: int, limit: int
) -> Sequence[HttpExecution]:
    """Return the attempts after this number, in order and with their bodies."""
    attempts = _select_attempts(tenant_id, service_call_id)
    return list(attempts.filter(attempt__gt=number).order_by("attempt", "execution_id")[:limit])


def find_last_attempt(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpExecution | None:
    return _select_attempts(tenant_id, service_call_id).order_by("attempt", "execution_id").last()


def list_attempts_without_bodies(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Sequence[HttpExecution]:
    """Return the attempts of a call for a list, in order. Of very many, those in the middle are left out."""
    attempts = (
        _select_attempts(tenant_id, service_call_id)
        .defer(*_HEAVY_COLUMNS)
        .order_by("attempt", "execution_id")
    )
    last = list(attempts.reverse()[: FIRST_LISTED + LAST_LISTED])[::-1]
    if len(last) < FIRST_LISTED + LAST_LISTED:
        return last
    return [*attempts[:FIRST_LISTED], *last[FIRST_LISTED:]]


def list_last_attempts(
    tenant_id: uuid.UUID, last_numbers: Mapping[uuid.UUID, int], limit: int
) -> dict[uuid.UUID, list[HttpExecution]]:
    """Return the last attempts of each call, up to `limit`, in order and without bodies.

    `last_numbers` has the number of the last attempt of each call.
    """
    attempts = HttpExecution.objects.for_tenant(tenant_id).defer(*_HEAVY_COLUMNS)
    few = [call for call, last in last_numbers.items() if 0 < last <= limit]
    found = list(attempts.filter(service_call_id__in=few))
    for call, last in last_numbers.items():
        if last > limit:
            found += attempts.filter(service_call_id=call, attempt__gt=last - limit)
    by_call = defaultdict(list)
    for attempt in sorted(found, key=lambda one: (one.attempt, one.execution_id)):
        by_call[attempt.service_call_id].append(attempt)
    return by_call


def find_attempt(
    tenant_id: uuid.UUID, service_call_id: uuid.UUID, execution_id: uuid.UUID
) -> HttpExecution | None:
    return _select_attempts(tenant_id, service_call_id).filter(execution_id=execution_id).first()


def _select_attempts(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> QuerySet[HttpExecution]:
    return HttpExecution.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id)

"""The dispatcher's statements. They are global by nature and in raw SQL: the ORM's rows cost twice the publishing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any
from uuid import UUID

from django.db import connection

from eventservice.db.bulk import execute_rows
from eventservice.db.now import as_utc, db_now
from eventservice.db.sql import as_uuid, placeholders
from outbox.envelope import Envelope
from outbox.models import OutboxEvent

Aggregate = tuple[UUID, UUID]

# A poison event is tried this often before it is parked.
MAX_ATTEMPTS = 5

# Of a small backlog, the partitions that it is in; of a large one the count says only that it is large.
PROBE = """
SELECT waiting.{partition}, COUNT(*) FROM (
    SELECT {partition} FROM outbox WHERE published_at IS NULL AND parked_at IS NULL LIMIT %s
) AS waiting GROUP BY waiting.{partition}"""
PROBE_ROWS = 200

HEAD = """
SELECT * FROM (
    SELECT e.id, e.{partition}, e.attempts, e.event_id, e.tenant_id, e.aggregate_id, e.aggregate_seq, e.event_type,
        e.created_at, e.correlation_id, e.causation_id, e.event_payload, EXISTS (
            SELECT 1 FROM outbox p WHERE p.tenant_id = e.tenant_id AND p.aggregate_id = e.aggregate_id
                AND p.published_at IS NULL AND p.parked_at IS NOT NULL
        ) AS held
    FROM outbox e
    WHERE e.{partition} = %s AND e.published_at IS NULL AND e.parked_at IS NULL
    ORDER BY e.id LIMIT %s
) AS head_{number}"""

MARK = "UPDATE outbox SET published_at = %s WHERE published_at IS NULL AND id IN ({marks})"
# A statement for many: one for each row costs PostgreSQL three times as much, and MariaDB eight times.
MARK_BATCH = 500

REFUSE = """
UPDATE outbox SET attempts = %s, last_error = %s, parked_at = %s
WHERE id = %s AND attempts = %s AND published_at IS NULL AND parked_at IS NULL"""


def list_nonempty_partitions(partitions: Sequence[int]) -> list[int]:
    """Those of the partitions in which there may be something: a pass that finds nothing must cost nothing."""
    with connection.cursor() as cursor:
        cursor.execute(PROBE.format(partition=_quote_partition()), [PROBE_ROWS])
        counts = dict(cursor.fetchall())
    if sum(counts.values()) == PROBE_ROWS:
        return list(partitions)
    return [partition for partition in partitions if partition in counts]


def read_heads(partitions: Sequence[int], each: int) -> tuple[list[Envelope], set[Aggregate]]:
    """The first unpublished events of each partition, partition by partition; and which aggregates are parked."""
    if not partitions:
        return [], set()
    with connection.cursor() as cursor:
        cursor.execute(
            _build_heads_query(connection.vendor, len(partitions)),
            [p for key in partitions for p in (key, each)],
        )
        rows = cursor.fetchall()
    events = [_parse_envelope(row) for row in rows]
    return events, {event.aggregate for event, row in zip(events, rows, strict=True) if row[-1]}


@cache
def _build_heads_query(vendor: str, count: int) -> str:
    # One statement, of one index range a partition: a partition that is stopped costs the others nothing.
    return " UNION ALL ".join(
        HEAD.format(partition=_quote_partition(), number=number) for number in range(count)
    )


def _quote_partition() -> str:
    # A reserved word of MariaDB.
    return connection.ops.quote_name("partition")


def _parse_envelope(row: Any) -> Envelope:
    (
        key,
        partition,
        attempts,
        event,
        tenant,
        aggregate,
        sequence,
        kind,
        time,
        correlation,
        causation,
        data,
        _,
    ) = row
    return Envelope(
        key, partition, attempts, as_uuid(event), as_uuid(tenant), as_uuid(aggregate), sequence, kind,
        as_utc(time), as_uuid(correlation), None if causation is None else as_uuid(causation), data,
    )  # fmt: skip


def mark_published(events: Sequence[Envelope]) -> int:
    now = db_now()
    chunks = [events[start : start + MARK_BATCH] for start in range(0, len(events), MARK_BATCH)]
    return sum(_mark([event.id for event in chunk], now) for chunk in chunks)


def _mark(ids: Sequence[int], now: datetime) -> int:
    return execute_rows(MARK.format(marks=placeholders(ids)), [(now, *ids)])


def record_refusal(event: Envelope, error: str) -> bool:
    """Counts a try of a poison event; True when it was the last, and the event is now parked."""
    attempts = event.attempts + 1
    parked_at = db_now() if attempts >= MAX_ATTEMPTS else None
    touched = execute_rows(REFUSE, [(attempts, error, parked_at, event.id, event.attempts)])
    return bool(touched) and parked_at is not None


def park_followers(tenant_id: UUID, aggregate_id: UUID) -> None:
    """Parks what has come in behind a parked event, if that is still parked: it leaves the polling index.

    The caller's fence keeps out `unpark` and `skip`, which would miss what is held while they run.
    """
    waiting = OutboxEvent.objects.for_tenant(tenant_id).filter(aggregate_id=aggregate_id, published_at=None)
    if waiting.filter(parked_at__isnull=False).exists():
        waiting.filter(parked_at=None).update(parked_at=db_now())

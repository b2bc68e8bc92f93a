"""The dispatcher's statements. They read across tenants, and use raw SQL: the ORM's rows cost twice the publishing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from django.db import connection

from eventservice.db.bulk import execute_rows
from eventservice.db.now import as_utc, db_now
from eventservice.db.sql import as_uuid, placeholders
from outbox.envelope import Aggregate, Envelope
from outbox.models import OutboxPartition
from outbox.writer import PARTITIONS

# An event that a publisher rejects is parked after this many attempts.
MAX_ATTEMPTS = 5

# The partitions of a small backlog. If the backlog is large, the count says only that. The order is that of the index:
# without one, PostgreSQL read the whole table while its statistics were those of a large backlog.
PROBE_SQL = """
SELECT waiting.{partition}, COUNT(*) FROM (
    SELECT {partition} FROM outbox WHERE published_at IS NULL AND parked_at IS NULL
    ORDER BY {partition}, id LIMIT %s
) AS waiting GROUP BY waiting.{partition}"""
PROBE_ROWS = 200

COLUMNS = """e.id, e.{partition}, e.attempts, e.event_id, e.tenant_id, e.aggregate_type, e.aggregate_id,
        e.aggregate_seq, e.event_type, e.created_at, e.correlation_id, e.causation_id, e.event_payload"""

EVENTS_SQL = f"SELECT {COLUMNS} FROM outbox e WHERE e.id IN ({{ids}}) ORDER BY e.id"

HEAD_SQL = f"""
SELECT * FROM (
    SELECT {COLUMNS}, EXISTS (
            SELECT 1 FROM outbox p WHERE p.tenant_id = e.tenant_id AND p.aggregate_id = e.aggregate_id
                AND p.published_at IS NULL AND p.parked_at IS NOT NULL
        ) AS held
    FROM outbox e
    WHERE e.{{partition}} = %s AND e.published_at IS NULL AND e.parked_at IS NULL
    ORDER BY e.id LIMIT %s
) AS head_{{number}}"""

QUEUE_SQL = f"""
SELECT {COLUMNS}
FROM (SELECT event_id FROM ({{heads}}) AS heads ORDER BY event_id LIMIT %s) AS waiting
JOIN outbox e ON e.id = waiting.event_id
ORDER BY e.id"""

QUEUE_HEAD_SQL = """
SELECT event_id FROM (
    SELECT event_id FROM broker_queue WHERE publisher = %s AND partition_id = %s ORDER BY event_id LIMIT %s
) AS head_{number}"""

MARK_SQL = "UPDATE outbox SET published_at = %s WHERE published_at IS NULL AND id IN ({ids})"
# One statement for many rows: one for each row costs three times as much on PostgreSQL, and eight times on MariaDB.
MARK_BATCH = 500

REFUSE_SQL = """
UPDATE outbox SET attempts = %s, last_error = %s, parked_at = %s
WHERE id = %s AND attempts = %s AND published_at IS NULL AND parked_at IS NULL"""


def create_partitions() -> None:
    """Create the ownership records of all partitions that have none."""
    if OutboxPartition.objects.count() < PARTITIONS:
        OutboxPartition.objects.bulk_create(
            [OutboxPartition(partition=number) for number in range(PARTITIONS)], ignore_conflicts=True
        )


def list_nonempty_partitions(partitions: Sequence[int]) -> list[int]:
    """Return those of the partitions that may have unpublished events. It is cheap when there are none at all."""
    with connection.cursor() as cursor:
        cursor.execute(PROBE_SQL.format(partition=quote_partition()), [PROBE_ROWS])
        counts = dict(cursor.fetchall())
    if sum(counts.values()) == PROBE_ROWS:
        return list(partitions)
    return [partition for partition in partitions if partition in counts]


def read_heads(partitions: Sequence[int], limit: int) -> tuple[list[Envelope], set[Aggregate]]:
    """Return the first unpublished events of each partition, and which of their aggregates are parked.

    The events come partition by partition, at most `limit` of each.
    """
    if not partitions:
        return [], set()
    parameters = [value for partition in partitions for value in (partition, limit)]
    with connection.cursor() as cursor:
        cursor.execute(_build_heads_query(quote_partition(), len(partitions)), parameters)
        rows = cursor.fetchall()
    heads = [_parse_head(row) for row in rows]
    return [event for event, _ in heads], {event.aggregate for event, held in heads if held}


@cache
def _build_heads_query(partition: str, count: int) -> str:
    # One statement with an index range for each partition: a paused partition costs the others nothing.
    heads = (HEAD_SQL.format(partition=partition, number=number) for number in range(count))
    return " UNION ALL ".join(heads)


def quote_partition() -> str:
    # A reserved word in MariaDB.
    return connection.ops.quote_name("partition")


def read_events(ids: Sequence[int]) -> list[Envelope]:
    """Return the events with these ids that still exist, in their order."""
    query = EVENTS_SQL.format(partition=quote_partition(), ids=", ".join(["%s"] * len(ids)))
    with connection.cursor() as cursor:
        cursor.execute(query, ids)
        return [_parse_event(row) for row in cursor.fetchall()]


def read_broker_queue(publisher: str, partitions: Collection[int], limit: int) -> list[Envelope]:
    """Return the first events of these partitions that wait for a broker: those of each aggregate in their order."""
    if not partitions:
        return []
    query = _build_queue_query(quote_partition(), len(partitions))
    parameters = [value for partition in partitions for value in (publisher, partition, limit)]
    with connection.cursor() as cursor:
        cursor.execute(query, [*parameters, limit])
        return [_parse_event(row) for row in cursor.fetchall()]


@cache
def _build_queue_query(partition: str, count: int) -> str:
    # An index range for each partition: what waits in the partitions of others costs nothing.
    heads = " UNION ALL ".join(QUEUE_HEAD_SQL.format(number=number) for number in range(count))
    return QUEUE_SQL.format(partition=partition, heads=heads)


def _parse_head(row: Any) -> tuple[Envelope, bool]:
    *event, held = row
    return _parse_event(event), bool(held)


def _parse_event(row: Any) -> Envelope:
    key, partition, attempts, event, tenant, aggregate_type, aggregate, sequence, kind, time, *rest = row
    correlation, causation, data = rest
    return Envelope(
        key, partition, attempts, as_uuid(event), as_uuid(tenant), aggregate_type, as_uuid(aggregate), sequence, kind,
        as_utc(time), as_uuid(correlation), None if causation is None else as_uuid(causation), data,
    )  # fmt: skip


def mark_published(events: Sequence[Envelope]) -> int:
    """Mark the events as published. Return how many were not before."""
    now = db_now()
    batches = (events[start : start + MARK_BATCH] for start in range(0, len(events), MARK_BATCH))
    return sum(_mark([event.id for event in batch], now) for batch in batches)


def _mark(ids: Sequence[int], now: datetime) -> int:
    return execute_rows(MARK_SQL.format(ids=placeholders(ids)), [(now, *ids)])


def record_refusal(event: Envelope, error: str) -> bool:
    """Count an attempt of an event that a publisher rejects. Return True if it was the last, and the event is parked."""
    attempts = event.attempts + 1
    parked_at = db_now() if attempts >= MAX_ATTEMPTS else None
    updated = execute_rows(REFUSE_SQL, [(attempts, error, parked_at, event.id, event.attempts)])
    return bool(updated) and parked_at is not None

"""The row of a timer, by the names of the specification's columns. Every store has the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timers.stores.port import Progress, QualifiedNamespace, Revision, RowType, StoredTimer, TimerKey


def build_timer_row(timer: StoredTimer) -> dict[str, Any]:
    """Return the columns of a timer, those that an update may change included."""
    return {
        "shard_id": timer.key.shard,
        "row_type": int(RowType.TIMER),
        "timer_execute_at": timer.execute_at,
        "timer_uuid": timer.key.uuid,
        "timer_id": timer.key.timer_id,
        "timer_namespace": str(timer.key.namespace),
        "timer_callback_url": timer.callback_url,
        "timer_payload": timer.payload,
        "timer_retry_policy": None if timer.retry_policy is None else dict(timer.retry_policy),
        "timer_callback_timeout_seconds": timer.callback_timeout_seconds,
        "timer_created_at": timer.created_at,
        "timer_revision": timer.revision,
        "timer_takes": timer.takes,
        "timer_taken_until": timer.taken_until,
        "timer_taken_by": timer.taken_by,
        "timer_take_id": None,
        "timer_requested_at": timer.requested_at,
        "timer_format": timer.format,
        **build_progress_columns(timer.progress),
    }


def build_progress_columns(progress: Progress) -> dict[str, Any]:
    return {
        "timer_attempts": progress.attempts,
        "timer_interruptions": progress.interruptions,
        "timer_first_started_at": progress.first_started_at,
        "timer_next_seq": progress.next_seq,
    }


def read_timer_row(row: Mapping[Any, Any]) -> StoredTimer:
    namespace = QualifiedNamespace.parse(row["timer_namespace"])
    return StoredTimer(
        key=TimerKey(namespace, row["timer_id"], row["shard_id"]),
        revision=Revision(row["timer_revision"]),
        execute_at=row["timer_execute_at"],
        requested_at=row["timer_requested_at"],
        created_at=row["timer_created_at"],
        callback_url=row["timer_callback_url"],
        payload=row["timer_payload"],
        retry_policy=row["timer_retry_policy"],
        callback_timeout_seconds=row["timer_callback_timeout_seconds"],
        progress=Progress(
            attempts=row["timer_attempts"],
            interruptions=row["timer_interruptions"],
            first_started_at=row["timer_first_started_at"],
            next_seq=row["timer_next_seq"],
        ),
        takes=row["timer_takes"],
        taken_until=row["timer_taken_until"],
        taken_by=row["timer_taken_by"],
        format=row["timer_format"],
    )

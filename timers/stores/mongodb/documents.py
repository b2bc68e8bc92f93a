"""The documents of a timer store on MongoDB."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from timers.stores.port import Progress, QualifiedNamespace, Revision, RowType, StoredTimer, TimerKey

Document = dict[str, Any]


def build_timer_document(timer: StoredTimer) -> Document:
    return {
        "shard_id": timer.key.shard,
        "row_type": int(RowType.TIMER),
        "timer_execute_at": timer.execute_at,
        "timer_uuid": timer.key.uuid,
        "timer_id": timer.key.timer_id,
        "timer_namespace": str(timer.key.namespace),
        "timer_callback_url": timer.callback_url,
        # As text: not every JSON value is valid in BSON, for example keys that begin with $.
        "timer_payload": json.dumps(timer.payload, ensure_ascii=False),
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
        **build_progress_members(timer.progress),
    }


def build_progress_members(progress: Progress) -> Document:
    return {
        "timer_attempts": progress.attempts,
        "timer_interruptions": progress.interruptions,
        "timer_first_started_at": progress.first_started_at,
        "timer_next_seq": progress.next_seq,
    }


def read_timer_document(document: Mapping[str, Any]) -> StoredTimer:
    namespace = QualifiedNamespace.parse(document["timer_namespace"])
    return StoredTimer(
        key=TimerKey(namespace, document["timer_id"], document["shard_id"]),
        revision=Revision(document["timer_revision"]),
        execute_at=document["timer_execute_at"],
        requested_at=document["timer_requested_at"],
        created_at=document["timer_created_at"],
        callback_url=document["timer_callback_url"],
        payload=json.loads(document["timer_payload"]),
        retry_policy=document["timer_retry_policy"],
        callback_timeout_seconds=document["timer_callback_timeout_seconds"],
        progress=Progress(
            attempts=document["timer_attempts"],
            interruptions=document["timer_interruptions"],
            first_started_at=document["timer_first_started_at"],
            next_seq=document["timer_next_seq"],
        ),
        takes=document["timer_takes"],
        taken_until=document["timer_taken_until"],
        taken_by=document["timer_taken_by"],
        format=document["timer_format"],
    )

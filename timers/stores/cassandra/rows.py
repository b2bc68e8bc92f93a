"""The rows of a timer store on Cassandra: the specification's columns as the driver binds and returns them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from timers.stores.port import StoredTimer, TimerTooLarge
from timers.stores.rows import build_timer_row

Row = dict[str, Any]

JSON_COLUMNS = ("timer_payload", "timer_retry_policy", "shard_metadata")
# Cassandra is not made for large values: it reads and writes them as a whole, in memory.
MAX_TIMER_BYTES = 2**20


def build_row(timer: StoredTimer) -> Row:
    """Return the columns of a timer. Raise TimerTooLarge if Cassandra should not store it."""
    row = build_timer_row(timer)
    del row["timer_take_id"]  # Cassandra says which conditions were met
    row["timer_payload"] = encode_json(timer.payload)  # None is a payload, too
    if timer.retry_policy is not None:
        row["timer_retry_policy"] = encode_json(timer.retry_policy)
    size = len(row["timer_payload"]) + len(timer.callback_url)
    if size > MAX_TIMER_BYTES:
        raise TimerTooLarge(
            f"payload: with the URL it has {size:,} bytes, and a store on Cassandra accepts {MAX_TIMER_BYTES:,}"
        )
    return row


def decode_row(row: Mapping[str, Any]) -> Row:
    return {name: _decode(name, value) for name, value in row.items()}


def _decode(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return _decode_time(value)
    return json.loads(value) if name in JSON_COLUMNS and value is not None else value


def encode_json(value: object) -> str:
    """Return JSON in ASCII, so that the number of characters is that of bytes."""
    return json.dumps(value)


def _decode_time(moment: datetime) -> datetime:
    """Return a time as it was stored. The driver returns it without a time zone, and computes it with floating-point numbers."""
    rounded = moment + timedelta(microseconds=500)
    return rounded.replace(microsecond=rounded.microsecond // 1000 * 1000, tzinfo=UTC)

"""The items of a timer store on DynamoDB: the specification's columns as typed attributes, and their keys."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from timers.stores.port import (
    RESERVED_SHARD,
    Member,
    QualifiedNamespace,
    RowType,
    StoredTimer,
    TimerKey,
    TimerRefused,
    TimerTooLarge,
)
from timers.stores.rows import build_timer_row, read_timer_row

# Attributes by their names: {"N": "1"} for numbers, {"S": "text"} for everything else.
Item = dict[str, dict[str, str]]

SHARD_SORT_KEY = "SHARD#OWNERSHIP"
# DynamoDB's limits.
MAX_SORT_KEY_BYTES = 1024
MAX_ITEM_BYTES = 400 * 1024
# An item and its entry in the index, which is its key, share the limit. A take adds attributes to the item: it must never
# fail because the item is too large, since the timer could not be executed.
MAX_TIMER_BYTES = MAX_ITEM_BYTES - 4096
# An item of a full partition cannot grow, not even by a take. So it gives this text up for the name of the cell. The timer can
# be executed and removed, and makes room.
RESERVE = "-" * 80

JSON_COLUMNS = {"timer_payload", "timer_retry_policy", "shard_metadata"}
# Those that are absent in an item instead of null.
OPTIONAL_COLUMNS = (
    "timer_retry_policy",
    "timer_taken_by",
    "timer_first_started_at",
    "shard_owner_id",
    "shard_claimed_at",
)
DECODERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(JSON_COLUMNS, json.loads),
    "timer_uuid": uuid.UUID,
    "timer_revision": uuid.UUID,
    "timer_execute_at": datetime.fromisoformat,
    "timer_requested_at": datetime.fromisoformat,
    "timer_created_at": datetime.fromisoformat,
    "timer_taken_until": datetime.fromisoformat,
    "timer_first_started_at": datetime.fromisoformat,
    "shard_claimed_at": datetime.fromisoformat,
    "timer_callback_timeout_seconds": float,
}


def encode_time(moment: datetime) -> str:
    """Return a text of fixed width, so that texts are ordered as times. Fractions of milliseconds are cut off."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def encode_column(name: str, value: object) -> dict[str, str]:
    """Return the attribute of a column that has a value."""
    if name in JSON_COLUMNS:
        return {"S": json.dumps(value, ensure_ascii=False)}
    if isinstance(value, int | float):
        return {"N": repr(value)}
    return {"S": encode_time(value) if isinstance(value, datetime) else str(value)}


def build_item(columns: Mapping[str, object]) -> Item:
    """Return the item of a row, without the columns that are None."""
    return {name: encode_column(name, value) for name, value in columns.items() if value is not None}


def read_item(item: Item) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(OPTIONAL_COLUMNS)
    for name, attribute in item.items():
        ((kind, text),) = attribute.items()
        row[name] = DECODERS.get(name, int if kind == "N" else str)(text)
    return row


# --- keys ---------------------------------------------------------------------------------------------------------


def build_key(shard: int, sort_key: str) -> Item:
    return build_item({"shard_id": shard, "sortKey": sort_key})


def build_sort_key_prefix(row_type: RowType, namespace: QualifiedNamespace | None = None) -> str:
    """Return how the sort keys of a kind of rows begin, or of the timers in a namespace, whose name has no #."""
    return f"{row_type.name}#" if namespace is None else f"{row_type.name}#{namespace}#"


def build_timer_sort_key(namespace: QualifiedNamespace, timer_id: str) -> str:
    return build_sort_key_prefix(RowType.TIMER, namespace) + timer_id


def build_timer_key(key: TimerKey) -> Item:
    return build_key(key.shard, build_timer_sort_key(key.namespace, key.timer_id))


def build_shard_key(shard: int) -> Item:
    return build_key(shard, SHARD_SORT_KEY)


def build_member_key(member: Member) -> Item:
    return build_key(RESERVED_SHARD, build_sort_key_prefix(RowType.MEMBER) + str(member.id))


def build_namespace_key(namespace: QualifiedNamespace) -> Item:
    return build_key(RESERVED_SHARD, build_sort_key_prefix(RowType.NAMESPACE) + str(namespace))


# --- timers -------------------------------------------------------------------------------------------------------


def build_timer_item(timer: StoredTimer, updated_at: datetime) -> Item:
    """Return the item of a timer. Raise TimerRefused if DynamoDB can never store it."""
    row = build_timer_row(timer) | {"row_type": RowType.TIMER.name, "updated_at": updated_at}
    item = build_item(row) | build_timer_key(timer.key)
    # None is a payload, too.
    item["timer_payload"] = encode_column("timer_payload", timer.payload)
    item["timer_reserve"] = encode_column("timer_reserve", RESERVE)
    _refuse_what_cannot_be_stored(item)
    return item


def read_timer_item(item: Item) -> StoredTimer:
    return read_timer_row(read_item(item))


def is_sort_key_too_long(key: TimerKey) -> bool:
    return len(build_timer_sort_key(key.namespace, key.timer_id).encode()) > MAX_SORT_KEY_BYTES


def measure_bytes(item: Item) -> int:
    """Return the size of an item as DynamoDB counts it, or a little more: it packs numbers."""
    return sum(len(name) + len(text.encode()) for name, one in item.items() for text in one.values())


def _refuse_what_cannot_be_stored(item: Item) -> None:
    size = len(item["sortKey"]["S"].encode())
    if size > MAX_SORT_KEY_BYTES:
        raise TimerRefused(
            f"id: with its namespace it makes a key of {size:,} bytes, and DynamoDB accepts {MAX_SORT_KEY_BYTES:,}"
        )
    size = measure_bytes(item)
    if size > MAX_TIMER_BYTES:
        raise TimerTooLarge(
            f"payload: the timer has {size:,} bytes, and DynamoDB accepts {MAX_TIMER_BYTES:,}"
        )

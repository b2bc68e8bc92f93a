"""The statements of a timer store on Cassandra: texts with named markers, and the values that the driver binds to them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from timers.stores.cassandra.table import COLUMNS, KEY, TABLE
from timers.stores.port import EPOCH, NIL_UUID, RowType

AT_KEY = "WHERE " + " AND ".join(f"{name} = :{name}" for name in KEY)
IN_ROWS = "WHERE shard_id = :shard_id AND row_type = :row_type"
# What a timer is read from.
TIMER_COLUMNS = ", ".join(
    ["shard_id", *(name for name in COLUMNS if name.startswith("timer_") and name != "timer_row_at")]
)


class Statement(NamedTuple):
    """A statement. A marker without a value leaves its column as it is; None makes it null."""

    text: str
    values: Mapping[str, object]


def build_key(
    shard: int, row_type: RowType, row_uuid: uuid.UUID = NIL_UUID, execute_at: datetime = EPOCH
) -> dict[str, object]:
    return {
        "shard_id": shard,
        "row_type": int(row_type),
        "timer_execute_at": execute_at,
        "timer_uuid": row_uuid,
    }


def build_select(columns: str, key: Mapping[str, object]) -> Statement:
    """Return the statement that reads one row."""
    return Statement(f"SELECT {columns} FROM {TABLE} {AT_KEY}", key)


def build_select_all(
    columns: str, shard: int, row_type: RowType, condition: str = "", **values: object
) -> Statement:
    """Return the statement that reads rows of a type in a shard, in the order of the key."""
    return Statement(
        f"SELECT {columns} FROM {TABLE} {IN_ROWS} {condition}",
        {"shard_id": shard, "row_type": int(row_type), **values},
    )


def build_insert(row: Mapping[str, object], *, if_absent: bool = False) -> Statement:
    """Return the statement that stores a row without its nulls: Cassandra would keep a tombstone of each."""
    values = {name: value for name, value in row.items() if value is not None}
    names, markers = ", ".join(values), ", ".join(f":{name}" for name in values)
    text = f"INSERT INTO {TABLE} ({names}, updated_at) VALUES ({markers}, toTimestamp(now()))"
    return Statement(f"{text} IF NOT EXISTS" if if_absent else text, values)


def build_update(
    key: Mapping[str, object],
    changes: Mapping[str, object],
    seen: Mapping[str, object],
    time_columns: Iterable[str] = ("updated_at",),
) -> Statement:
    """Return the statement that changes a row if columns have the values that were seen, or if it exists at all.

    The time columns become the time of the server.
    """
    assignments = ", ".join(
        [
            *(f"{name} = :{name}" for name in changes),
            *(f"{name} = toTimestamp(now())" for name in time_columns),
        ]
    )
    condition = _build_condition(seen) if seen else "IF EXISTS"
    return Statement(
        f"UPDATE {TABLE} SET {assignments} {AT_KEY} {condition}", {**key, **changes, **_rename(seen)}
    )


def build_delete(key: Mapping[str, object], seen: Mapping[str, object]) -> Statement:
    """Return the statement that deletes a row if columns have the values that were seen. Without any, another statement decides."""
    return Statement(
        f"DELETE FROM {TABLE} {AT_KEY} {_build_condition(seen) if seen else ''}", {**key, **_rename(seen)}
    )


# --- the floors of a shard, which are in the row of its ownership -------------------------------------------------


def build_select_floors(shard: int) -> Statement:
    """Return the statement that reads the floors and the clock of the server, if the shard has a row."""
    columns = "shard_write_floor, shard_read_floor, toTimestamp(now()) AS clock"
    return build_select(columns, build_key(shard, RowType.SHARD))


def build_floor_update(name: str, shard: int, floor: datetime, seen: datetime | None) -> Statement:
    return build_update(build_key(shard, RowType.SHARD), {name: floor}, {name: seen})


def build_floor_condition(shard: int, place: datetime) -> Statement:
    """Return the statement by which a batch may create a row at a time. It changes nothing that matters."""
    return Statement(
        f"UPDATE {TABLE} SET updated_at = toTimestamp(now()) {AT_KEY} IF shard_write_floor <= :place",
        {**build_key(shard, RowType.SHARD), "place": place},
    )


def _build_condition(seen: Iterable[str]) -> str:
    return "IF " + " AND ".join(f"{name} = :seen_{name}" for name in seen)


def _rename(seen: Mapping[str, object]) -> dict[str, object]:
    return {f"seen_{name}": value for name, value in seen.items()}

"""The table of a timer store on Cassandra, as the specification defines it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TABLE = "timers"
KEY = ("shard_id", "row_type", "timer_execute_at", "timer_uuid")
# Those of the specification first, in its order.
COLUMNS = {
    "shard_id": "int",
    "row_type": "smallint",
    "timer_execute_at": "timestamp",
    "timer_uuid": "uuid",
    "timer_id": "text",
    "timer_namespace": "text",
    "timer_callback_url": "text",
    "timer_payload": "text",
    "timer_retry_policy": "text",
    "timer_callback_timeout_seconds": "double",
    "timer_created_at": "timestamp",
    "timer_attempts": "int",
    "shard_version": "bigint",
    "shard_owner_id": "text",
    "shard_claimed_at": "timestamp",
    "shard_metadata": "text",
    "timer_revision": "uuid",
    "timer_takes": "int",
    "timer_taken_until": "timestamp",
    "timer_taken_by": "text",
    "timer_requested_at": "timestamp",
    "timer_first_started_at": "timestamp",
    "timer_interruptions": "int",
    "timer_next_seq": "bigint",
    "timer_format": "int",
    # In the pointer of a timer: the timer_execute_at of its row.
    "timer_row_at": "timestamp",
    # No row of a timer is created before the first, and none is before the second.
    "shard_write_floor": "timestamp",
    "shard_read_floor": "timestamp",
    "updated_at": "timestamp",
}

READ_COLUMNS = (
    "SELECT column_name, type, kind, position, clustering_order FROM system_schema.columns"
    " WHERE keyspace_name = ? AND table_name = ?"
)


def build_keyspace(name: str, replication: Mapping[str, int]) -> str:
    """Return the statement that creates a keyspace. The names have been checked in the URL."""
    parameters = {"class": "NetworkTopologyStrategy", **replication}
    return f"CREATE KEYSPACE IF NOT EXISTS {name} WITH replication = {parameters!r}"


def build_table(keyspace: str) -> str:
    """Return the statement that creates the table. The name has been checked in the URL."""
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    partition_key, *clustering_key = KEY
    order = ", ".join(f"{name} ASC" for name in clustering_key)
    return (
        f"CREATE TABLE IF NOT EXISTS {keyspace}.{TABLE}"
        f" ({columns}, PRIMARY KEY ({partition_key}, {', '.join(clustering_key)}))"
        f" WITH CLUSTERING ORDER BY ({order})"
    )


def find_differences(columns: Sequence[Mapping[str, Any]]) -> list[str]:
    """Compare the columns of a table, as the server describes them, with the definition."""
    found = {one["column_name"]: one for one in columns}
    differences = []
    key = _read_key(columns)
    if key != list(KEY):
        differences.append(f"its key is ({', '.join(key)}) instead of ({', '.join(KEY)})")
    if descending := [one["column_name"] for one in columns if one["clustering_order"] == "desc"]:
        differences.append(f"the order of {', '.join(sorted(descending))} is descending")
    for name, kind in COLUMNS.items():
        if name not in found:
            differences.append(f"it has no column {name}")
        elif found[name]["type"] != kind:
            differences.append(f"{name} has the type {found[name]['type']} instead of {kind}")
        elif found[name]["kind"] == "static":
            differences.append(f"{name} is static")
    return differences


def _read_key(columns: Sequence[Mapping[str, Any]]) -> list[str]:
    # "partition_key" is after "clustering" in the alphabet, and before it in the key.
    parts = [one for one in columns if one["kind"] in ("partition_key", "clustering")]
    parts.sort(key=lambda one: (one["kind"] == "clustering", one["position"]))
    return [one["column_name"] for one in parts]

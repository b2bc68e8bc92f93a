"""The table of a timer store on DynamoDB, as the specification defines it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DUE_INDEX = "timer_execute_at-index"
TABLE_KEY = {"shard_id": "HASH", "sortKey": "RANGE"}
INDEX_KEY = {"shard_id": "HASH", "timer_execute_at": "RANGE"}
ATTRIBUTE_TYPES = {"shard_id": "N", "sortKey": "S", "timer_execute_at": "S"}
# An item and its entry in the index have at most 400 KB together. And a take need not write the index.
PROJECTION = "KEYS_ONLY"


def build_definition(name: str) -> dict[str, Any]:
    """Return the request that creates the table."""
    return {
        "TableName": name,
        "KeySchema": _build_key_schema(TABLE_KEY),
        "AttributeDefinitions": [
            {"AttributeName": attribute, "AttributeType": kind} for attribute, kind in ATTRIBUTE_TYPES.items()
        ],
        "LocalSecondaryIndexes": [
            {
                "IndexName": DUE_INDEX,
                "KeySchema": _build_key_schema(INDEX_KEY),
                "Projection": {"ProjectionType": PROJECTION},
            }
        ],
        "BillingMode": "PAY_PER_REQUEST",
    }


def find_differences(description: Mapping[str, Any]) -> list[str]:
    """Compare the description of a table with the definition. None of these differences can be removed afterwards."""
    differences = []
    if _read_key(description) != TABLE_KEY:
        differences.append(
            f"its key is ({', '.join(_read_key(description))}) instead of ({', '.join(TABLE_KEY)})"
        )
    types = {one["AttributeName"]: one["AttributeType"] for one in description["AttributeDefinitions"]}
    differences += [
        f"{name} has the type {types[name]} instead of {kind}"
        for name, kind in ATTRIBUTE_TYPES.items()
        if types.get(name, kind) != kind
    ]
    indexes = {one["IndexName"]: one for one in description.get("LocalSecondaryIndexes", [])}
    index = indexes.get(DUE_INDEX)
    if index is None or _read_key(index) != INDEX_KEY:
        differences.append(f"it has no local secondary index {DUE_INDEX} ({', '.join(INDEX_KEY)})")
    elif (projection := index["Projection"]["ProjectionType"]) != PROJECTION:
        differences.append(f"the index {DUE_INDEX} has the projection {projection} instead of {PROJECTION}")
    return differences


def measure_table_bytes(description: Mapping[str, Any]) -> int:
    """Return the size of a table with its indexes. DynamoDB counts it about every six hours."""
    indexes = description.get("LocalSecondaryIndexes", [])
    return int(description["TableSizeBytes"]) + sum(int(index["IndexSizeBytes"]) for index in indexes)


def _build_key_schema(key: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"AttributeName": name, "KeyType": kind} for name, kind in key.items()]


def _read_key(description: Mapping[str, Any]) -> dict[str, str]:
    return {one["AttributeName"]: one["KeyType"] for one in description["KeySchema"]}

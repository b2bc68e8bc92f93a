"""Encodings that the stores share: positions in lists, and declarations of namespaces."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from timers.stores.port import NamespaceDeclaration, Position, QualifiedNamespace, StoredTimer

T = TypeVar("T")

# After those of all timers that are due at the same moment.
MAX_UUID = uuid.UUID(int=2**128 - 1)


def encode_position(*parts: str | int) -> Position:
    return Position(json.dumps(parts, ensure_ascii=False))


def decode_position(position: Position) -> list[Any]:
    parts: list[Any] = json.loads(position)
    return parts


def build_due_position(timer: StoredTimer) -> Position:
    """Return the position after a timer in the order of due times, where equal times are ordered by UUIDs."""
    return encode_position(timer.execute_at.isoformat(), str(timer.key.uuid))


def parse_due_position(position: Position | datetime) -> tuple[datetime, uuid.UUID]:
    if isinstance(position, datetime):
        return position, MAX_UUID
    execute_at, timer_uuid = decode_position(position)
    return datetime.fromisoformat(execute_at), uuid.UUID(timer_uuid)


def split_batches(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


# --- the metadata of a row that declares a namespace --------------------------------------------------------------


def build_declaration(num_shards: int, fingerprint: Mapping[str, str]) -> dict[str, Any]:
    return {"numShards": num_shards, "fingerprint": dict(fingerprint)}


def read_declaration(namespace: str, version: int, metadata: Mapping[str, Any]) -> NamespaceDeclaration:
    return NamespaceDeclaration(
        QualifiedNamespace.parse(namespace), metadata["numShards"], metadata["fingerprint"], version
    )

"""The table of a timer store for SQLAlchemy: its columns, and how their values are stored.

The files in `schema` create it. SQLAlchemy needs the types for parameters and results only.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    DateTime,
    Dialect,
    Double,
    Integer,
    MetaData,
    RowMapping,
    SmallInteger,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects import mssql, mysql, oracle, postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from timers.stores.port import Progress, QualifiedNamespace, Revision, RowType, StoredTimer, TimerKey

# --- types --------------------------------------------------------------------------------------------------------

_TIMES: dict[str, TypeEngine[Any]] = {
    "postgresql": postgresql.TIMESTAMP(precision=3),
    "mysql": mysql.DATETIME(fsp=3),
    "mariadb": mysql.DATETIME(fsp=3),
    "oracle": oracle.TIMESTAMP(),
    "mssql": mssql.DATETIME2(3),  # type: ignore[no-untyped-call]
}


class UtcTime(TypeDecorator[datetime]):
    """A moment, stored in UTC without a time zone."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(_TIMES[dialect.name])

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


class TimerUuid(TypeDecorator[uuid.UUID]):
    """A UUID in the database's own type, or in the one that the specification chose in its place."""

    impl = String(36)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.UUID(as_uuid=True))
        if dialect.name == "mssql":
            return dialect.type_descriptor(mssql.UNIQUEIDENTIFIER(as_uuid=True))
        return dialect.type_descriptor(oracle.RAW(16) if dialect.name == "oracle" else String(36))

    def process_bind_param(self, value: uuid.UUID | None, dialect: Dialect) -> Any:
        if value is None or dialect.name in ("postgresql", "mssql"):
            return value
        return value.bytes if dialect.name == "oracle" else str(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> uuid.UUID | None:
        if value is None or isinstance(value, uuid.UUID):
            return value
        return uuid.UUID(bytes=value) if dialect.name == "oracle" else uuid.UUID(value)


class JsonText(TypeDecorator[Any]):
    """JSON in a column for text. None is NULL."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value, ensure_ascii=False)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


Json = (
    JSON(none_as_null=True)
    .with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
    .with_variant(JsonText(), "oracle", "mssql")
)


class ServerTime(FunctionElement[datetime]):
    """The server's time in UTC."""

    type = UtcTime()
    inherit_cache = True


_SERVER_TIMES = {
    "postgresql": "timezone('UTC', clock_timestamp())",
    "mysql": "UTC_TIMESTAMP(3)",
    "mariadb": "UTC_TIMESTAMP(3)",
    "oracle": "SYS_EXTRACT_UTC(SYSTIMESTAMP)",
    "mssql": "SYSUTCDATETIME()",
}


@compiles(ServerTime)
def _render_server_time(element: ServerTime, compiler: Any, **options: Any) -> str:
    return _SERVER_TIMES[compiler.dialect.name]


# --- the table ----------------------------------------------------------------------------------------------------

timers = Table(
    "timers",
    MetaData(),
    Column("shard_id", Integer, primary_key=True, autoincrement=False),
    Column("row_type", SmallInteger, primary_key=True, autoincrement=False),
    Column("timer_execute_at", UtcTime, primary_key=True),
    Column("timer_uuid", TimerUuid, primary_key=True),
    Column("timer_id", String(255)),
    Column("timer_namespace", String(255)),
    Column("timer_callback_url", String(2048)),
    Column("timer_payload", Json),
    Column("timer_retry_policy", Json),
    Column("timer_callback_timeout_seconds", Double),
    Column("timer_created_at", UtcTime),
    Column("timer_attempts", Integer),
    Column("shard_version", BigInteger),
    Column("shard_owner_id", String(255)),
    Column("shard_claimed_at", UtcTime),
    Column("shard_metadata", Json),
    Column("timer_revision", TimerUuid),
    Column("timer_takes", Integer),
    Column("timer_taken_until", UtcTime),
    Column("timer_taken_by", String(255)),
    # Names one request that takes timers, because not every database says which rows an UPDATE has changed.
    Column("timer_take_id", TimerUuid),
    Column("timer_requested_at", UtcTime),
    Column("timer_first_started_at", UtcTime),
    Column("timer_interruptions", Integer),
    Column("timer_next_seq", BigInteger),
    Column("timer_format", Integer),
    Column("updated_at", UtcTime),
)


# --- rows ---------------------------------------------------------------------------------------------------------


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


def read_timer(row: RowMapping | Mapping[str, Any]) -> StoredTimer:
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

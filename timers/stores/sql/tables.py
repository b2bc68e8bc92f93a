"""The table of a timer store for SQLAlchemy: its columns, and how their values are stored.

The files in `schema` create it. SQLAlchemy needs the types for parameters and results only.
"""

from __future__ import annotations

import json
import uuid
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
    SmallInteger,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects import mssql, mysql, oracle, postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

# --- types --------------------------------------------------------------------------------------------------------

_TIMES: dict[str, TypeEngine[Any]] = {
    "postgresql": postgresql.TIMESTAMP(precision=3),
    "mysql": mysql.DATETIME(fsp=3),
    "mariadb": mysql.DATETIME(fsp=3),
    "oracle": oracle.TIMESTAMP(),
    "mssql": mssql.DATETIME2(3),  # type: ignore[no-untyped-call]
}


def strip_time_zone(moment: datetime) -> datetime:
    """Return a moment as the table has it: in UTC and without a time zone."""
    return moment.astimezone(UTC).replace(tzinfo=None)


class UtcTime(TypeDecorator[datetime]):
    """A moment, stored in UTC without a time zone."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(_TIMES[dialect.name])

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else strip_time_zone(value)

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

"""Small parts of raw statements, and what comes back from them, where the databases differ."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Func


class Unindexed(Func):
    """A column that no index shall be chosen for: SQLite's documented unary plus. The others weigh costs."""

    template = "%(expressions)s"
    arity = 1

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="+%(expressions)s", **extra)


def placeholders(values: Collection[Any]) -> str:
    return ", ".join(["%s"] * len(values))


def for_update(*, skip_locked: bool = False) -> str:
    """The clause that holds what is read for this transaction's changes; SQLite's is alone anyway."""
    if not connection.features.has_select_for_update:
        return ""
    return connection.ops.for_update_sql(skip_locked=skip_locked)


def share_lock() -> str:
    """The clause that holds what is read as it is until the transaction ends; SQLite's is alone anyway."""
    return {"sqlite": "", "postgresql": "FOR SHARE"}.get(connection.vendor, "LOCK IN SHARE MODE")


@contextmanager
def without_waiting() -> Iterator[None]:
    """Who would write while another does is refused at once on SQLite. Elsewhere rows are locked, which can be skipped."""
    if connection.vendor != "sqlite":
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout")
        (usual,) = cursor.fetchone()
        cursor.execute("PRAGMA busy_timeout = 0")
        try:
            yield
        finally:
            cursor.execute(f"PRAGMA busy_timeout = {usual}")


def as_uuid(value: Any) -> UUID:
    """Digits on SQLite and MariaDB."""
    return value if isinstance(value, UUID) else UUID(value)

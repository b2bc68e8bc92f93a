"""The MySQL dialect. Its time functions and most of its locking are those of MariaDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eventservice.db.dialects.base import Locks
from eventservice.db.dialects.mariadb.dialect import (
    MariaDBErrors,
    MariaDBFamilyDialect,
    MariaDBWriter,
)
from eventservice.db.dialects.mysql import health

if TYPE_CHECKING:
    from eventservice.db.dialects.base import Model


class MySQLWriter(MariaDBWriter):
    def upsert_sql(
        self,
        model: Model,
        columns: Sequence[str],
        key: Sequence[str],
        overwritten: Sequence[str],
        changes: str,
    ) -> str:
        # The new row's columns get names of their own, so that those in `changes` are the stored row's.
        aliases = ", ".join(f"new_{column}" for column in columns)
        overwrite = ", ".join(f"{column} = new_{column}" for column in overwritten)
        insert = self.insert_sql(model, columns)
        return f"{insert} AS new_row ({aliases}) ON DUPLICATE KEY UPDATE {overwrite}, {changes}"


class MySQLErrors(MariaDBErrors):
    # As MariaDB's, but with MySQL's number of a statement timeout.
    ROLLED_BACK = frozenset({1040, 2002, 2003, 1205, MariaDBErrors.DEADLOCK, 3024})


class MySQLDialect(MariaDBFamilyDialect):
    locks = Locks()
    writer = MySQLWriter()
    errors = MySQLErrors()
    health_checks = (health.check_version, health.check_collation, health.check_session_timeouts)

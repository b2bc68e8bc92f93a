"""The MySQL dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eventservice.db.dialects.base import Locks
from eventservice.db.dialects.mysql import health
from eventservice.db.dialects.mysql_family.dialect import FamilyDialect, FamilyWriter

if TYPE_CHECKING:
    from eventservice.db.dialects.base import Model


class MySQLWriter(FamilyWriter):
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


class MySQLDialect(FamilyDialect):
    locks = Locks()
    writer = MySQLWriter()
    health_checks = (health.check_version, health.check_collation, health.check_session_timeouts)

"""The MariaDB dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eventservice.db.dialects.base import Locks
from eventservice.db.dialects.mariadb import health
from eventservice.db.dialects.mysql_family.dialect import FamilyDialect, FamilyWriter

if TYPE_CHECKING:
    from eventservice.db.dialects.base import Model


class MariaDBLocks(Locks):
    for_share = "LOCK IN SHARE MODE"


class MariaDBWriter(FamilyWriter):
    def upsert_sql(
        self,
        model: Model,
        columns: Sequence[str],
        key: Sequence[str],
        overwritten: Sequence[str],
        changes: str,
    ) -> str:
        overwrite = ", ".join(f"{column} = VALUES({column})" for column in overwritten)
        return f"{self.insert_sql(model, columns)} ON DUPLICATE KEY UPDATE {overwrite}, {changes}"


class MariaDBDialect(FamilyDialect):
    locks = MariaDBLocks()
    writer = MariaDBWriter()
    health_checks = (health.check_collation, health.check_session_timeouts)

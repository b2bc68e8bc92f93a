"""MySQL in DATABASE_URL and DATABASES."""

from __future__ import annotations

from eventservice.db.dialects.configuration import Waits
from eventservice.db.dialects.mysql_family.configuration import FamilyConfiguration


class MySQLConfiguration(FamilyConfiguration):
    engine = "eventservice.db.dialects.mysql"
    schemes = ("mysql",)
    collation = "utf8mb4_0900_bin"

    def render_own_limits(self, waits: Waits) -> str:
        # MySQL has no limit for idle transactions. wait_timeout ends every idle session, within a transaction or not;
        # Django replaces a connection that was idle between two requests. max_execution_time is for SELECT only: the
        # driver's read_timeout ends the wait for other statements.
        return (
            f"wait_timeout={waits.idle_transaction_seconds},"
            f" max_execution_time={waits.statement_seconds * 1000}"
        )

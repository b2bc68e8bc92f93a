"""MySQL in DATABASE_URL and DATABASES."""

from __future__ import annotations

from eventservice.db.dialects.configuration import DatabaseSettings, Waits
from eventservice.db.dialects.mysql_family.configuration import FamilyConfiguration

SORT_BUFFER_BYTES = 8 * 1024 * 1024


class MySQLConfiguration(FamilyConfiguration):
    engine = "eventservice.db.dialects.mysql"
    schemes = ("mysql",)
    collation = "utf8mb4_0900_bin"
    wait_options = FamilyConfiguration.wait_options | {"idle_transaction_seconds"}

    def configure(self, database: DatabaseSettings, waits: Waits) -> None:
        super().configure(database, waits)
        # MySQL has no limit for idle transactions: the backend sets one for the session in each (base.py).
        database["OPTIONS"]["idle_transaction_seconds"] = waits.idle_transaction_seconds

    def render_own_limits(self, waits: Waits) -> str:
        # max_execution_time is for SELECT only: the driver's read_timeout ends the wait for other statements.
        # Where a primary key names the rows, MySQL would intersect it with another index and sort what it finds.
        # A sort fails with error 1038 if a row is larger than the sort buffer, which by default is smaller than the two
        # bodies of an attempt can be. The server takes as much of it as the sort needs.
        return (
            f"max_execution_time={waits.statement_seconds * 1000},"
            f" optimizer_switch='index_merge_intersection=off', sort_buffer_size={SORT_BUFFER_BYTES}"
        )

"""MariaDB in DATABASE_URL and DATABASES."""

from __future__ import annotations

from eventservice.db.dialects.configuration import Waits
from eventservice.db.dialects.mysql_family.configuration import FamilyConfiguration


class MariaDBConfiguration(FamilyConfiguration):
    engine = "eventservice.db.dialects.mariadb"
    schemes = ("mariadb",)
    collation = "utf8mb4_nopad_bin"

    def render_own_limits(self, waits: Waits) -> str:
        return (
            f"idle_transaction_timeout={waits.idle_transaction_seconds},"
            f" max_statement_time={waits.statement_seconds}"
        )

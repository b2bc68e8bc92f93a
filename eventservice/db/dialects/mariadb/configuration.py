"""MariaDB in DATABASE_URL and DATABASES."""

from __future__ import annotations

from eventservice.db.dialects.configuration import DatabaseSettings, ServerConfiguration, SessionLimits


class MariaDBConfiguration(ServerConfiguration):
    engine = "eventservice.db.dialects.mariadb"
    schemes = ("mysql", "mariadb")

    def configure(self, database: DatabaseSettings, limits: SessionLimits) -> None:
        super().configure(database, limits)
        database["OPTIONS"] |= {
            "charset": "utf8mb4",
            "isolation_level": "read committed",
            "init_command": (
                f"SET SESSION idle_transaction_timeout={limits.idle_transaction_seconds},"
                f" innodb_lock_wait_timeout={limits.lock_seconds}, lock_wait_timeout={limits.lock_seconds},"
                f" max_statement_time={limits.statement_seconds}"
            ),
        }
        # Ids and tags are compared by their bytes, as on the other databases.
        database["TEST"] = {"CHARSET": "utf8mb4", "COLLATION": "utf8mb4_nopad_bin"}

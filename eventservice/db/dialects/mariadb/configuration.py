"""MariaDB in DATABASE_URL and DATABASES."""

from __future__ import annotations

from eventservice.db.dialects.configuration import DatabaseSettings, ServerConfiguration, Waits


class MariaDBConfiguration(ServerConfiguration):
    engine = "eventservice.db.dialects.mariadb"
    schemes = ("mysql", "mariadb")
    wait_options = frozenset({"connect_timeout", "read_timeout", "write_timeout"})

    def configure(self, database: DatabaseSettings, waits: Waits) -> None:
        super().configure(database, waits)
        database["OPTIONS"] |= {
            "charset": "utf8mb4",
            "isolation_level": "read committed",
            "connect_timeout": waits.connect_seconds,
            "read_timeout": waits.answer_seconds,
            "write_timeout": waits.answer_seconds,
            "init_command": (
                f"SET SESSION idle_transaction_timeout={waits.idle_transaction_seconds},"
                f" innodb_lock_wait_timeout={waits.lock_seconds}, lock_wait_timeout={waits.lock_seconds},"
                f" max_statement_time={waits.statement_seconds}"
            ),
        }
        # Ids and tags are compared by their bytes, as on the other databases.
        database["TEST"] = {
            **database.get("TEST", {}),
            "CHARSET": "utf8mb4",
            "COLLATION": "utf8mb4_nopad_bin",
        }

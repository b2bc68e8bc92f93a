"""MariaDB in DATABASE_URL and DATABASES."""

from __future__ import annotations

from eventservice.db.dialects.configuration import DatabaseSettings, ServerConfiguration, Waits


class MariaDBConfiguration(ServerConfiguration):
    """MySQL's configuration derives from this one."""

    engine = "eventservice.db.dialects.mariadb"
    schemes = ("mariadb",)
    wait_options = frozenset({"connect_timeout", "read_timeout", "write_timeout"})
    # Ids and tags are compared by their bytes, as on the other databases.
    collation = "utf8mb4_nopad_bin"

    def configure(self, database: DatabaseSettings, waits: Waits) -> None:
        super().configure(database, waits)
        database["OPTIONS"] |= {
            "charset": "utf8mb4",
            "isolation_level": "read committed",
            "connect_timeout": waits.connect_seconds,
            "read_timeout": waits.answer_seconds,
            "write_timeout": waits.answer_seconds,
            "init_command": (
                f"SET SESSION innodb_lock_wait_timeout={waits.lock_seconds},"
                f" lock_wait_timeout={waits.lock_seconds}, {self.render_own_limits(waits)}"
            ),
        }
        database["TEST"] = {
            **database.get("TEST", {}),
            "CHARSET": "utf8mb4",
            "COLLATION": self.collation,
        }

    def render_own_limits(self, waits: Waits) -> str:
        """Return the assignments of those limits that MariaDB and MySQL name differently."""
        return (
            f"idle_transaction_timeout={waits.idle_transaction_seconds},"
            f" max_statement_time={waits.statement_seconds}"
        )

"""The common part of MariaDB and MySQL in DATABASE_URL and DATABASES."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from inspect import signature

from eventservice.db.dialects.configuration import DatabaseSettings, ServerConfiguration, Waits


class FamilyConfiguration(ServerConfiguration):
    wait_options = frozenset({"connect_timeout", "read_timeout", "write_timeout"})
    # Ids and tags are compared by their bytes, as on the other databases.
    collation: str

    def list_options(self) -> Collection[str]:
        from pymysql.connections import Connection  # not installed where no server needs it

        return {*signature(Connection).parameters, "isolation_level"}  # Django's

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

    @abstractmethod
    def render_own_limits(self, waits: Waits) -> str:
        """Return the assignments of those limits that MariaDB and MySQL name differently."""

"""PostgreSQL in DATABASE_URL and DATABASES."""

from __future__ import annotations

from collections.abc import Collection

from eventservice.db.dialects.configuration import (
    KEEPALIVE_COUNT,
    KEEPALIVE_IDLE_SECONDS,
    KEEPALIVE_INTERVAL_SECONDS,
    UNACKNOWLEDGED_SECONDS,
    DatabaseSettings,
    ServerConfiguration,
    Waits,
)


class PostgreSQLConfiguration(ServerConfiguration):
    engine = "eventservice.db.dialects.postgresql"
    schemes = ("postgres", "postgresql")
    wait_options = frozenset(
        {
            "connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count",
            "tcp_user_timeout", "answer_seconds",
        }
    )  # fmt: skip

    def list_options(self) -> Collection[str]:
        from psycopg.pq import Conninfo  # slow to import, and most URLs have no options

        return {option.keyword.decode() for option in Conninfo.get_defaults()} | {"assume_role"}  # Django's

    def configure(self, database: DatabaseSettings, waits: Waits) -> None:
        super().configure(database, waits)
        database["OPTIONS"] |= {
            "connect_timeout": waits.connect_seconds,
            "answer_seconds": waits.answer_seconds,  # base.py
            "keepalives": 1,
            "keepalives_idle": KEEPALIVE_IDLE_SECONDS,
            "keepalives_interval": KEEPALIVE_INTERVAL_SECONDS,
            "keepalives_count": KEEPALIVE_COUNT,
            "tcp_user_timeout": 1000 * UNACKNOWLEDGED_SECONDS,
            "options": (
                f"-c idle_in_transaction_session_timeout={waits.idle_transaction_seconds}s"
                f" -c lock_timeout={waits.lock_seconds}s -c statement_timeout={waits.statement_seconds}s"
                " -c TimeZone=UTC"
            ),
        }

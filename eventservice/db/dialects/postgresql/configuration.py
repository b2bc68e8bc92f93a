"""PostgreSQL in DATABASE_URL and DATABASES."""

from __future__ import annotations

from eventservice.db.dialects.configuration import DatabaseSettings, ServerConfiguration, SessionLimits


class PostgreSQLConfiguration(ServerConfiguration):
    engine = "eventservice.db.dialects.postgresql"
    schemes = ("postgres", "postgresql")

    def configure(self, database: DatabaseSettings, limits: SessionLimits) -> None:
        super().configure(database, limits)
        database["OPTIONS"]["options"] = (
            f"-c idle_in_transaction_session_timeout={limits.idle_transaction_seconds}s"
            f" -c lock_timeout={limits.lock_seconds}s -c statement_timeout={limits.statement_seconds}s"
            " -c TimeZone=UTC"
        )

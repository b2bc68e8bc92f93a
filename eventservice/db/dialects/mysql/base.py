"""Django's database backend for MySQL servers, which limits idle transactions by a limit for idle sessions."""

from __future__ import annotations

from typing import Any

from eventservice.db.dialects.mysql.dialect import MySQLDialect
from eventservice.db.dialects.mysql_family.backend import FamilyWrapper


class DatabaseWrapper(FamilyWrapper):
    dialect = MySQLDialect()
    mysql_is_mariadb = False
    idle_transaction_seconds: int

    def get_connection_params(self) -> dict[str, Any]:
        params = super().get_connection_params()
        self.idle_transaction_seconds = params.pop("idle_transaction_seconds")
        return params

    def _set_autocommit(self, autocommit: bool) -> None:
        """Begin or end a transaction, and set how long the session may be idle from now on, in one statement."""
        seconds = self.idle_session_seconds if autocommit else self.idle_transaction_seconds
        with self.wrap_database_errors:
            self.connection.autocommit_mode = autocommit
            self.connection.query(f"SET autocommit = {int(autocommit)}, wait_timeout = {seconds}")

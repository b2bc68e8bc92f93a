"""Django's MySQL backend on PyMySQL, for MariaDB servers, with one time per transaction.

MariaDB's CURRENT_TIMESTAMP is stable within a statement only, so the instant is read once when a transaction
begins and `DbNow` renders it from there (eventservice.db.now).
"""

from datetime import datetime
from typing import Any

import pymysql
from django.core.exceptions import ImproperlyConfigured

pymysql.install_as_MySQLdb()

from django.db.backends.mysql import base  # noqa: E402

from eventservice.db.dialects.mariadb.dialect import MariaDBDialect  # noqa: E402


class DatabaseWrapper(base.DatabaseWrapper):
    dialect = MariaDBDialect()
    transaction_now: datetime | None = None

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        connection = super().get_new_connection(conn_params)
        with connection.cursor() as cursor:
            cursor.execute("SELECT VERSION()")
            (version,) = cursor.fetchone()
            if "mariadb" not in version.lower():
                connection.close()
                raise ImproperlyConfigured(
                    f"The server that DATABASE_URL names is MySQL {version}, which is not supported: "
                    "expected MariaDB, PostgreSQL or SQLite."
                )
            cursor.execute("SET time_zone = '+00:00'")
        return connection

    def set_autocommit(self, autocommit: bool, *args: Any, **kwargs: Any) -> None:
        super().set_autocommit(autocommit, *args, **kwargs)
        self.transaction_now = None if autocommit else self._read_now()

    def _read_now(self) -> datetime:
        with self.wrap_database_errors, self.connection.cursor() as cursor:
            cursor.execute("SELECT CURRENT_TIMESTAMP(6)")
            instant: datetime = cursor.fetchone()[0]
        return instant

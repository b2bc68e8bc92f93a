"""The differences between the SQL databases of timer stores: schemes, sessions, limits, error codes and sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A client gives up on the server a little later than the server on the statement, whose outcome is then known.
CONNECT_SECONDS, LOCK_SECONDS, STATEMENT_SECONDS, ANSWER_SECONDS = 3, 4, 6, 8

SCHEMAS = Path(__file__).parent / "schema"
MEGABYTE = 2**20


@dataclass(frozen=True, slots=True)
class SqlDatabase:
    """One database. `scheme` is that of a store's URL, and `driver` is the name of the dialect in SQLAlchemy."""

    name: str
    scheme: str
    driver: str
    schema_file: str
    # Selects a text that tells this database from those that speak the same protocol.
    version_query: str
    is_own_version: Callable[[str], bool]
    connect_args: Mapping[str, Any]
    # The codes of the error that a unique key has the row already.
    key_exists: frozenset[str | int]
    # Executed in each new session.
    session: str = ""
    # The codes of errors after which the server has rolled the statement back, and it can be repeated at once.
    repeatable: frozenset[str | int] = frozenset()
    too_large: frozenset[str | int] = frozenset()
    # The codes of CREATE statements for what exists, where there is no IF NOT EXISTS.
    exists: frozenset[str | int] = frozenset()
    # Of the texts of one row. A request of this size must be accepted with the server's default settings.
    max_row_bytes: int = 15 * MEGABYTE
    # Where trailing spaces are ignored in every comparison.
    ignores_trailing_spaces: bool = False
    size_query: str = ""
    # Of those columns that identify a timer. Empty where equality of strings is that of bytes anyway.
    collation: str = ""

    def list_schema_statements(self) -> list[str]:
        lines = (SCHEMAS / self.schema_file).read_text().splitlines()
        text = "\n".join(line for line in lines if not line.startswith("--"))
        # Within a statement, the line that follows a semicolon is indented.
        return [statement.strip() for statement in re.split(r";\n(?! )", text) if statement.strip(" \n;")]


_MYSQL_TIMEOUTS = {
    "charset": "utf8mb4",
    "connect_timeout": CONNECT_SECONDS,
    "read_timeout": ANSWER_SECONDS,
    "write_timeout": ANSWER_SECONDS,
}
_MYSQL_SESSION = f"SET SESSION time_zone = '+00:00', innodb_lock_wait_timeout = {LOCK_SECONDS}"
_MYSQL_SIZE = (
    "SELECT SUM(data_length + index_length) FROM information_schema.tables"
    " WHERE table_schema = DATABASE() AND table_name = 'timers'"
)
_MYSQL_KEY_EXISTS: frozenset[str | int] = frozenset({1062})
_MYSQL_REPEATABLE: frozenset[str | int] = frozenset({1213})
_MYSQL_TOO_LARGE: frozenset[str | int] = frozenset({1153, 1301})

POSTGRESQL = SqlDatabase(
    name="PostgreSQL",
    scheme="postgresql+psycopg",
    driver="postgresql+psycopg",
    schema_file="postgresql.sql",
    version_query="SELECT version()",
    is_own_version=lambda version: version.startswith("PostgreSQL"),
    connect_args={
        "connect_timeout": CONNECT_SECONDS,
        "tcp_user_timeout": 1000 * ANSWER_SECONDS,
        "options": (
            f"-c statement_timeout={STATEMENT_SECONDS}s -c lock_timeout={LOCK_SECONDS}s -c TimeZone=UTC"
        ),
    },
    key_exists=frozenset({"23505"}),
    repeatable=frozenset({"40P01", "40001"}),
    too_large=frozenset({"54000"}),
    # PostgreSQL keeps up to 255 MB of JSON in one value.
    max_row_bytes=128 * MEGABYTE,
    size_query="SELECT SUM(pg_total_relation_size(relid)) FROM pg_partition_tree('timers')",
)
MYSQL = SqlDatabase(
    name="MySQL",
    scheme="mysql+pymysql",
    driver="mysql+pymysql",
    schema_file="mysql.sql",
    version_query="SELECT CONCAT(VERSION(), ' ', @@version_comment)",
    is_own_version=lambda version: "MariaDB" not in version and "TiDB" not in version,
    connect_args=_MYSQL_TIMEOUTS,
    key_exists=_MYSQL_KEY_EXISTS,
    session=(
        f"{_MYSQL_SESSION}, transaction_isolation = 'READ-COMMITTED',"
        f" max_execution_time = {1000 * STATEMENT_SECONDS}"
    ),
    repeatable=_MYSQL_REPEATABLE,
    too_large=_MYSQL_TOO_LARGE,
    max_row_bytes=60 * MEGABYTE,
    size_query=_MYSQL_SIZE,
    collation="utf8mb4_0900_bin",
)
MARIADB = SqlDatabase(
    name="MariaDB",
    scheme="mariadb+pymysql",
    driver="mariadb+pymysql",
    schema_file="mariadb.sql",
    version_query="SELECT VERSION()",
    is_own_version=lambda version: "MariaDB" in version,
    connect_args=_MYSQL_TIMEOUTS,
    key_exists=_MYSQL_KEY_EXISTS,
    session=(f"{_MYSQL_SESSION}, tx_isolation = 'READ-COMMITTED', max_statement_time = {STATEMENT_SECONDS}"),
    repeatable=_MYSQL_REPEATABLE,
    too_large=_MYSQL_TOO_LARGE,
    size_query=_MYSQL_SIZE,
    collation="utf8mb4_nopad_bin",
)
TIDB = SqlDatabase(
    name="TiDB",
    scheme="tidb+pymysql",
    driver="mysql+pymysql",
    schema_file="tidb.sql",
    version_query="SELECT VERSION()",
    is_own_version=lambda version: "TiDB" in version,
    connect_args=_MYSQL_TIMEOUTS,
    key_exists=_MYSQL_KEY_EXISTS,
    session=f"{_MYSQL_SESSION}, max_execution_time = {1000 * STATEMENT_SECONDS}",
    # Also write conflicts, and a schema that changed meanwhile.
    repeatable=_MYSQL_REPEATABLE | {9007, 8002, 8022, 8028},
    too_large=_MYSQL_TOO_LARGE | {8025, 8004},
    # `txn-entry-size-limit`
    max_row_bytes=5 * MEGABYTE,
    size_query=_MYSQL_SIZE,
    collation="utf8mb4_0900_bin",
)
ORACLE = SqlDatabase(
    name="Oracle",
    scheme="oracle+oracledb",
    driver="oracle+oracledb",
    schema_file="oracle.sql",
    version_query="SELECT banner FROM v$version",
    is_own_version=lambda version: "Oracle" in version,
    connect_args={"tcp_connect_timeout": CONNECT_SECONDS},
    key_exists=frozenset({1}),
    repeatable=frozenset({60}),
    exists=frozenset({955}),
)
SQL_SERVER = SqlDatabase(
    name="SQL Server",
    scheme="mssql+pymssql",
    driver="mssql+pymssql",
    schema_file="mssql.sql",
    version_query="SELECT @@VERSION",
    is_own_version=lambda version: "SQL Server" in version or "Azure" in version,
    connect_args={"login_timeout": CONNECT_SECONDS, "timeout": ANSWER_SECONDS},
    session=f"SET LOCK_TIMEOUT {1000 * LOCK_SECONDS}",
    key_exists=frozenset({2601, 2627}),
    repeatable=frozenset({1205}),
    exists=frozenset({2714, 1913, 7707}),
    ignores_trailing_spaces=True,
)

DATABASES = {database.scheme: database for database in (POSTGRESQL, MYSQL, MARIADB, TIDB, ORACLE, SQL_SERVER)}

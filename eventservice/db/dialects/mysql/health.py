"""Checks of MySQL for `manage.py doctor`: the version, the tables' collation and the session's timeouts."""

from __future__ import annotations

from collections.abc import Iterator

from eventservice.db.dialects.health import check_timeouts, fetch_value
from eventservice.db.dialects.mysql_family.health import check_binary_collation
from eventservice.kernel.findings import Finding, check

TIMEOUTS = ("wait_timeout", "innodb_lock_wait_timeout", "lock_wait_timeout", "max_execution_time")


def check_version() -> Iterator[Finding]:
    version = str(fetch_value("SELECT VERSION()"))
    is_tested = version.split(".")[0] == "9"
    remedy = "Tests run on MySQL 9.7. Run the test suite on your version before you rely on it."
    yield check("version", is_tested, version, remedy)


def check_collation() -> Iterator[Finding]:
    yield check_binary_collation("utf8mb4_0900_bin")


def check_session_timeouts() -> Iterator[Finding]:
    yield check_timeouts({name: f"SELECT @@{name}" for name in TIMEOUTS})

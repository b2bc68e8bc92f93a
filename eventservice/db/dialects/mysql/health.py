"""Checks of MySQL for `manage.py doctor`: the version, the tables' collation and the session's timeouts."""

from __future__ import annotations

from collections.abc import Iterator

from eventservice.db.dialects.health import check_timeouts, fetch_value
from eventservice.db.dialects.mysql_family.health import check_binary_collation
from eventservice.kernel.findings import Finding, Severity, check

TESTED = "9.7."
TIMEOUTS = ("wait_timeout", "innodb_lock_wait_timeout", "lock_wait_timeout", "max_execution_time")


def check_version() -> Iterator[Finding]:
    yield judge_version(str(fetch_value("SELECT VERSION()")))


def judge_version(version: str) -> Finding:
    if version.startswith(TESTED):
        return check("version", True, version)
    remedy = "The tests run on MySQL 9.7 (docs/databases.md). Run them on your version before you rely on it."
    return Finding("version", Severity.WARNING, f"{version} is not tested.", remedy)


def check_collation() -> Iterator[Finding]:
    yield check_binary_collation("utf8mb4_0900_bin")


def check_session_timeouts() -> Iterator[Finding]:
    # `doctor` runs this in a transaction, where wait_timeout is the limit for idle transactions (base.py).
    yield check_timeouts({name: f"SELECT @@{name}" for name in TIMEOUTS})

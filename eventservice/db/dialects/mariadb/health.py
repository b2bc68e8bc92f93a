"""Checks of MariaDB for `manage.py doctor`: the tables' collation and the session's timeouts."""

from __future__ import annotations

from collections.abc import Iterator

from eventservice.db.dialects.health import check_timeouts
from eventservice.db.dialects.mysql_family.health import check_binary_collation
from eventservice.kernel.findings import Finding

TIMEOUTS = ("idle_transaction_timeout", "innodb_lock_wait_timeout", "lock_wait_timeout", "max_statement_time")


def check_collation() -> Iterator[Finding]:
    yield check_binary_collation("utf8mb4_nopad_bin")


def check_session_timeouts() -> Iterator[Finding]:
    yield check_timeouts({name: f"SELECT @@{name}" for name in TIMEOUTS})

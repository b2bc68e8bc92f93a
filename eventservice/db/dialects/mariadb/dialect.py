"""The MariaDB dialect."""

from __future__ import annotations

from eventservice.db.dialects.base import Locks
from eventservice.db.dialects.mariadb import health
from eventservice.db.dialects.mysql_family.dialect import FamilyDialect, FamilyWriter


class MariaDBLocks(Locks):
    for_share = "LOCK IN SHARE MODE"


class MariaDBWriter(FamilyWriter):
    inserted_value = "VALUES({0})"


class MariaDBDialect(FamilyDialect):
    locks = MariaDBLocks()
    writer = MariaDBWriter()
    health_checks = (health.check_collation, health.check_session_timeouts)

"""The MariaDB dialect."""

from __future__ import annotations

from eventservice.db.dialects.base import Locks
from eventservice.db.dialects.mariadb import health
from eventservice.db.dialects.mysql_family.dialect import FamilyDialect, FamilyFragments, FamilyWriter


class MariaDBLocks(Locks):
    for_share = "LOCK IN SHARE MODE"


class MariaDBWriter(FamilyWriter):
    inserted_value = "VALUES({0})"


class MariaDBFragments(FamilyFragments):
    uuid_rows = "JSON_TABLE(%s, '$[*]' COLUMNS (id CHAR(32) PATH '$')) AS given"


class MariaDBDialect(FamilyDialect):
    backup_tools = "mariadb-dump and mariadb"
    fragments = MariaDBFragments()
    locks = MariaDBLocks()
    writer = MariaDBWriter()
    health_checks = (health.check_collation, health.check_session_timeouts)

"""The MySQL dialect."""

from __future__ import annotations

from collections.abc import Sequence

from eventservice.db.dialects.base import Locks
from eventservice.db.dialects.mysql import health
from eventservice.db.dialects.mysql_family.dialect import FamilyDialect, FamilyFragments, FamilyWriter


class MySQLWriter(FamilyWriter):
    inserted_value = "new_{0}"

    def name_inserted(self, columns: Sequence[str]) -> str:
        # Names of their own, so that those in an upsert's `changes` are the stored row's.
        return f" AS new_row ({', '.join(f'new_{column}' for column in columns)})"


class MySQLFragments(FamilyFragments):
    stores_parsed_json = True
    # In the collation of the tables, so that their indexes are searched (configuration.py).
    uuid_rows = "JSON_TABLE(%s, '$[*]' COLUMNS (id CHAR(32) COLLATE utf8mb4_0900_bin PATH '$')) AS given"


class MySQLDialect(FamilyDialect):
    backup_tools = "mysqldump and mysql"
    locks = Locks()
    fragments = MySQLFragments()
    writer = MySQLWriter()
    health_checks = (health.check_version, health.check_collation, health.check_session_timeouts)

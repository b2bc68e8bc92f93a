"""The timer store on PostgreSQL: a feeder changes timers by functions of the schema.

With 256 shards, 2,000 timers were taken in 73 µs each, instead of 775 µs by one UPDATE that names 100 rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, TextClause, text

from eventservice.kernel.ids import new_id
from timers.stores.port import NextAttempt, StoredTimer, Take, TimerPage
from timers.stores.sql.store import SqlTimerStore, build_due_page
from timers.stores.sql.tables import strip_time_zone, timers

_ROWS = {
    "shards": "INTEGER[]",
    "times": "TIMESTAMP[]",
    "uuids": "UUID[]",
    "revisions": "UUID[]",
    "takes": "INTEGER[]",
}


def _build_call(function: str, **parameters: str) -> TextClause:
    """Return a statement that calls a function for rows, with parameters of these types behind those of all functions."""
    types = {**_ROWS, **parameters}
    values = ", ".join(f"CAST(:{name} AS {kind})" for name, kind in types.items())
    return text(f"SELECT * FROM {function}({values})")


TAKE = _build_call(
    "take_timers", taken_until="TIMESTAMP[]", new_taken_until="TIMESTAMP", cell="VARCHAR", take_id="UUID"
)
RESCHEDULE = _build_call(
    "reschedule_timers",
    cell="VARCHAR",
    new_times="TIMESTAMP[]",
    progressed="BOOLEAN[]",
    attempts="INTEGER[]",
    interruptions="INTEGER[]",
    first_started_at="TIMESTAMP[]",
    next_seq="BIGINT[]",
)
REMOVE = _build_call("remove_timers", cell="VARCHAR")
FIRST_DUE = text("""
SELECT due.* FROM unnest(CAST(:shards AS INTEGER[])) AS shard CROSS JOIN LATERAL (
    SELECT * FROM timers WHERE shard_id = shard AND row_type = 2 AND timer_execute_at <= CAST(:until AS TIMESTAMP)
        AND (timer_taken_until <= CAST(:now AS TIMESTAMP) OR timer_taken_by = CAST(:cell AS VARCHAR))
    ORDER BY timer_execute_at, timer_uuid LIMIT CAST(:limit AS INTEGER)
) AS due""").columns(*timers.columns)
FUNCTIONS = ("take_timers", "reschedule_timers", "remove_timers")
# Two processes that replace a function at the same time would disturb each other. The number has no meaning.
MIGRATION_LOCK = 4_119_203


class PostgreSqlTimerStore(SqlTimerStore):
    max_rows = 500

    def _create_schema(self, connection: Connection) -> None:
        connection.execute(text("SELECT pg_advisory_lock(:number)"), {"number": MIGRATION_LOCK})
        try:
            super()._create_schema(connection)
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:number)"), {"number": MIGRATION_LOCK})

    def _find_differences(self, connection: Connection) -> Sequence[str]:
        query = text(
            "SELECT proname FROM pg_proc WHERE pg_function_is_visible(oid) AND proname = ANY(:names)"
        )
        found = set(connection.execute(query, {"names": list(FUNCTIONS)}).scalars())
        missing = [f"there is no function {name}" for name in FUNCTIONS if name not in found]
        return [*super()._find_differences(connection), *missing]

    def first_due(
        self, shards: Sequence[int], now: datetime, until: datetime, limit: int, *, own: bool
    ) -> list[TimerPage]:
        values = {
            "shards": list(shards),
            "now": strip_time_zone(now),
            "until": strip_time_zone(until),
            "cell": self._cell if own else None,
            "limit": limit,
        }
        found: dict[int, list[RowMapping]] = {shard: [] for shard in shards}
        for row in self._read(lambda connection: connection.execute(FIRST_DUE, values).mappings().all()):
            found[row["shard_id"]].append(row)
        return [build_due_page(rows, limit) for rows in found.values()]

    def _take_batch(self, free: Sequence[StoredTimer], until: datetime) -> list[StoredTimer]:
        taken = self._call(
            TAKE,
            {
                **_identify([timer.take for timer in free]),
                "takes": [timer.takes for timer in free],
                "taken_until": [strip_time_zone(timer.taken_until) for timer in free],
                "new_taken_until": strip_time_zone(until),
                "cell": self._cell,
                "take_id": new_id(),
            },
        )
        return [timer for timer in free if timer.key.uuid in taken]

    def _reschedule_batch(self, attempts: Sequence[NextAttempt]) -> int:
        progress = [one.progress for one in attempts]
        rows = {
            **_identify([one.take for one in attempts]),
            "cell": self._cell,
            "new_times": [strip_time_zone(one.execute_at) for one in attempts],
            "progressed": [one is not None for one in progress],
            "attempts": [one and one.attempts for one in progress],
            "interruptions": [one and one.interruptions for one in progress],
            "first_started_at": [
                one and one.first_started_at and strip_time_zone(one.first_started_at) for one in progress
            ],
            "next_seq": [one and one.next_seq for one in progress],
        }
        return len(self._call(RESCHEDULE, rows))

    def _remove_batch(self, takes: Sequence[Take]) -> int:
        return len(self._call(REMOVE, {**_identify(takes), "cell": self._cell}))

    def _call(self, statement: TextClause, values: Mapping[str, Any]) -> set[uuid.UUID]:
        """Call a function. Return the UUIDs of the timers that it has changed."""
        return self._write(lambda connection: set(connection.execute(statement, values).scalars()))


def _identify(takes: Sequence[Take]) -> dict[str, list[Any]]:
    return {
        "shards": [take.key.shard for take in takes],
        "times": [strip_time_zone(take.execute_at) for take in takes],
        "uuids": [take.key.uuid for take in takes],
        "revisions": [take.revision for take in takes],
        "takes": [take.number for take in takes],
    }

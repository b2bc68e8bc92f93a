"""Find due timers in the shards that this node owns, fairly among tenants."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from django.db import connection

from eventservice.db.bulk import update_rows
from eventservice.db.dialects import get_dialect
from eventservice.db.leases import Leases
from eventservice.db.now import as_utc, db_now, render_now
from eventservice.db.sql import as_uuid, placeholders
from timers.models import TimerSchedule
from timers.schedule import Timer

# While others wait, each tenant may fill at least this much of a batch.
MIN_TENANT_SHARE = 20
# Requests of this size and more can be held back while smaller ones go on.
LARGE_REQUEST_BYTES = 10_000
TENANTS_CACHE_SECONDS = 0.25
# A search of everything that is due can take long when much of it is held back, and on SQLite it holds the only write
# lock. After one that found fewer timers than this, the next full search waits for REST_FACTOR times its duration.
MIN_SEARCH_YIELD = 50
REST_FACTOR = 5
# A timer that is due at once may be committed this much later, so a search for new timers starts that much earlier.
MAX_COMMIT_DELAY = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Tenants and hosts that have reached an in-flight limit: their timers wait, all others go on."""

    tenants: Collection[uuid.UUID] = ()
    hosts: Collection[str] = ()
    hosts_by_tenant: Mapping[uuid.UUID, Collection[str]] = field(default_factory=dict)
    # Applies to large requests only (LARGE_REQUEST_BYTES).
    large: HeldBack | None = None

    def __bool__(self) -> bool:
        return bool(self.tenants or self.hosts or self.hosts_by_tenant or self.large)

    def for_tenant(self, tenant_id: uuid.UUID) -> HeldBack:
        """Return the part that concerns one tenant."""
        return HeldBack(
            [tenant_id] if tenant_id in self.tenants else (),
            self.hosts,
            {tenant_id: self.hosts_by_tenant[tenant_id]} if tenant_id in self.hosts_by_tenant else {},
            self.large and self.large.for_tenant(tenant_id),
        )

    def exclusion_sql(self) -> tuple[str, list[Any]]:
        """Return the SQL condition that excludes these timers, and its parameters."""
        conditions, values = ["1 = 1"], list[Any]()
        for column, names in (("tenant_id", [t.hex for t in self.tenants]), ("host", list(self.hosts))):
            if names:
                conditions.append(f"{column} NOT IN ({placeholders(names)})")
                values += names
        if self.hosts_by_tenant:
            # One CASE for all tenants: SQLite refuses an expression of more than a thousand joined conditions.
            cases = [
                f"WHEN %s THEN host NOT IN ({placeholders(hosts)})" for hosts in self.hosts_by_tenant.values()
            ]
            conditions.append(f"CASE tenant_id {' '.join(cases)} ELSE 1 = 1 END")
            values += [
                value for tenant, hosts in self.hosts_by_tenant.items() for value in (tenant.hex, *hosts)
            ]
        if self.large:
            condition, large_values = self.large.exclusion_sql()
            conditions.append(
                f"({condition} OR request_bytes < %s)"
            )  # the only column that is not in the index
            values += [*large_values, LARGE_REQUEST_BYTES]
        return " AND ".join(conditions), values


NOTHING_HELD_BACK = HeldBack()


class Search(NamedTuple):
    """The scope of one search for due timers. With `since`, it skips everything that was due by then."""

    shards: Sequence[int]
    now: datetime
    held_back: HeldBack
    since: datetime | None = None


@dataclass
class Poller:
    """Claims due timers of the owned shards, one batch a pass.

    Order matters only when more is due than one pass can take. Then each tenant with due timers gets a share of the
    batch, and within a share the timers that have been due longest come first.

    Timers that are held back still have to be skipped by the search, and there may be many. After a search that found
    little else, the following passes only look for timers that became due since, so new timers start at once whatever
    the backlog.
    """

    leases: Leases
    crowded: bool = False
    clock: Callable[[], float] = time.monotonic  # the database's clock may be set back
    _turn: int = 0
    _tenants: list[uuid.UUID] = field(default_factory=list)
    _tenants_read_at: float | None = None
    _rest_until: float = 0.0
    _since: datetime | None = None

    def seconds_until_due(self) -> float | None:
        """Return the seconds until the next timer of the owned shards is due (negative if overdue), or None."""
        shards = list(self.leases.held)
        if not shards:
            return None
        with connection.cursor() as cursor:
            now, values = render_now()
            cursor.execute(_NEXT_DUE.format(placeholders=placeholders(shards), now=now), [*values, *shards])
            first, now = cursor.fetchone()
        return None if first is None else (as_utc(first) - as_utc(now)).total_seconds()

    def claim_due(
        self,
        limit: int,
        held_back: HeldBack = NOTHING_HELD_BACK,
        admit: Callable[[Timer], bool] = lambda timer: True,
    ) -> list[Timer]:
        """Lock due timers and mark them reached under this node's lease versions, in the caller's transaction.

        Timers that `admit` refuses stay scheduled: with them, this batch would exceed an in-flight limit. Raise Fenced
        if this node has lost the lease of a shard.
        """
        shards = list(self.leases.held)
        if not shards or limit < 1:
            return []
        now = db_now()
        due = [timer for timer in self._find_due(Search(shards, now, held_back), limit) if admit(timer)]
        self.leases.fence({timer.shard_id for timer in due})
        mark_reached(due, now, self.leases.held)
        return due

    def claim_again(self, timer: Timer) -> list[Timer]:
        """Claim one timer that was found before, in the caller's transaction, if it is still due."""
        now = db_now()
        search = Search([timer.shard_id], now, NOTHING_HELD_BACK)
        values = [timer.tenant_id.hex, timer.service_call_id.hex]
        due = _select("tenant_id = %s AND service_call_id = %s AND", values, search, 1, "due_at")
        self.leases.fence({timer.shard_id})
        mark_reached(due, now, self.leases.held)
        return due

    def _find_due(self, search: Search, limit: int) -> list[Timer]:
        if not search.held_back:
            return self._select_batch(search, limit)
        started_at = self.clock()
        if started_at < self._rest_until:
            return self._select_batch(search._replace(since=self._since), limit)
        due = self._select_batch(search, limit)
        if len(due) < max(limit, MIN_SEARCH_YIELD):
            ended_at = self.clock()
            self._rest_until = ended_at + REST_FACTOR * (ended_at - started_at)
            self._since = search.now - MAX_COMMIT_DELAY
        return due

    def _select_batch(self, search: Search, limit: int) -> list[Timer]:
        if not self.crowded:
            # Ordered like the index. Without it PostgreSQL prefers to read the table: it takes "is scheduled" and
            # "is past" for independent, and so expects most of the table to be due.
            due = _select("", [], search, limit, "shard_id, due_at")
            if len(due) < limit:
                return due
        due = self._select_fairly(search, limit)
        self.crowded = len(due) == limit
        return due

    def _select_fairly(self, search: Search, limit: int) -> list[Timer]:
        due: list[Timer] = []
        tenants = self._list_tenants_in_turn(search)
        share = max(MIN_TENANT_SHARE, limit // max(1, len(tenants)))
        busy: list[uuid.UUID] = []
        for served, tenant in enumerate(tenants, 1):
            found = _select_of_tenant(tenant, search, min(share, limit - len(due)))
            due += found
            if len(due) == limit:
                self._turn += served
                return due
            if len(found) == share:
                busy.append(tenant)
        self._turn += 1
        # Busy tenants fill the places that the others left.
        for tenant in busy:
            seen = {timer.service_call_id for timer in due if timer.tenant_id == tenant}
            more = _select_of_tenant(tenant, search, limit - len(due) + len(seen))
            due += [timer for timer in more if timer.service_call_id not in seen]
            if len(due) >= limit:
                break
        return due[:limit]

    def _list_tenants_in_turn(self, search: Search) -> list[uuid.UUID]:
        """Return the tenants with due timers that are not held back, beginning where the last pass stopped."""
        if self._tenants_read_at is None or self.clock() - self._tenants_read_at > TENANTS_CACHE_SECONDS:
            by = search.now + timedelta(seconds=TENANTS_CACHE_SECONDS)
            self._tenants, self._tenants_read_at = _list_tenants_with_due(by), self.clock()
        tenants = [tenant for tenant in self._tenants if tenant not in search.held_back.tenants]
        start = self._turn % max(1, len(tenants))
        return tenants[start:] + tenants[:start]


def mark_reached(due: Sequence[Timer], now: datetime, versions: Mapping[int, int]) -> None:
    """Mark timers as reached. `versions` maps each shard to the lease version under which they are reached."""
    update_rows(
        TimerSchedule,
        "state = 'Reached', reached_at = {reached_at}, claim_version = {claim_version}",
        "tenant_id = {tenant_id} AND service_call_id = {service_call_id} AND state = 'Scheduled'",
        [(now, versions[t.shard_id], t.tenant_id, t.service_call_id) for t in due],
    )


# One index seek for each shard, however large the backlog.
_NEXT_DUE = """
SELECT MIN(first_due), {now} FROM (
    SELECT (
        SELECT t.due_at FROM timer_schedules t
        WHERE t.shard_id = s.shard_id AND t.state = 'Scheduled' ORDER BY t.due_at LIMIT 1
    ) AS first_due
    FROM timer_shards s WHERE s.shard_id IN ({placeholders})
) AS firsts
"""


# One index seek for each tenant; DISTINCT would read every timer that is due.
_TENANTS_WITH_DUE = """
SELECT tenant_id FROM tenants WHERE EXISTS (
    SELECT 1 FROM timer_schedules t
    WHERE t.tenant_id = tenants.tenant_id AND t.state = 'Scheduled' AND t.due_at <= %s
) ORDER BY tenant_id
"""


def _list_tenants_with_due(by: datetime) -> list[uuid.UUID]:
    with connection.cursor() as cursor:
        cursor.execute(_TENANTS_WITH_DUE, [_to_database(by)])
        return [_to_tenant_id(tenant_id) for (tenant_id,) in cursor.fetchall()]


def _select_of_tenant(tenant: uuid.UUID, search: Search, limit: int) -> list[Timer]:
    search = search._replace(held_back=search.held_back.for_tenant(tenant))
    return _select("tenant_id = %s AND", [tenant.hex], search, limit, "due_at")


def _select(condition: str, values: list[Any], search: Search, limit: int, order: str) -> list[Timer]:
    sql = (
        f"SELECT {', '.join(Timer._fields)} FROM timer_schedules"
        f" WHERE {condition} state = 'Scheduled' AND due_at <= %s AND shard_id IN ({placeholders(search.shards)})"
    )
    values = [*values, _to_database(search.now), *search.shards]
    if search.since is not None:
        sql += " AND due_at > %s"
        values.append(_to_database(search.since))
    if search.held_back:
        exclusion, excluded = search.held_back.exclusion_sql()
        sql += f" AND {exclusion}"
        values += excluded
    with connection.cursor() as cursor:
        cursor.execute(
            f"{sql} ORDER BY {order} LIMIT {limit} {get_dialect().locks.for_update_skip_locked}", values
        )
        return [_to_timer(row) for row in cursor.fetchall()]


def _to_timer(row: tuple[Any, ...]) -> Timer:
    tenant_id, service_call_id, correlation_id, due_at, *others = row
    return Timer(
        _to_tenant_id(tenant_id), as_uuid(service_call_id), as_uuid(correlation_id), as_utc(due_at), *others
    )


@lru_cache(1024)  # the same few ids come again and again
def _to_tenant_id(value: Any) -> uuid.UUID:
    return as_uuid(value)


def _to_database(instant: datetime) -> Any:
    return connection.ops.adapt_datetimefield_value(instant)

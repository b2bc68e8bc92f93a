"""Finding what is due, fairly, in the shards that this node owns."""

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
from eventservice.db.leases import Leases
from eventservice.db.now import as_utc, db_now, render_now
from eventservice.db.sql import as_uuid, for_update, placeholders
from timers.models import TimerSchedule
from timers.schedule import Timer

# What one tenant may put into a batch while others wait, at the least.
MIN_TENANT_SHARE = 20
# Bytes of a request from which on somebody may be held back though the smaller ones go on.
LARGE_REQUEST_BYTES = 10_000
TENANTS_CACHE_SECONDS = 0.25
# A search of all that is due, much of which is held back, may take long, under SQLite's only write lock. If it finds
# few, the next is made after a rest of so many times its length.
MIN_SEARCH_YIELD = 50
REST_FACTOR = 5
# What is due at once may be committed so much later.
MAX_COMMIT_DELAY = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Who has all that they may have in flight: their timers wait, and nobody else's."""

    tenants: Collection[uuid.UUID] = ()
    hosts: Collection[str] = ()
    hosts_by_tenant: Mapping[uuid.UUID, Collection[str]] = field(
        default_factory=dict
    )  # of one tenant's calls alone
    large: HeldBack | None = None  # whose large requests wait, though the others do not

    def __bool__(self) -> bool:
        return bool(self.tenants or self.hosts or self.hosts_by_tenant or self.large)

    def of(self, tenant_id: uuid.UUID) -> HeldBack:
        """As far as it is about one tenant."""
        return HeldBack(
            [tenant_id] if tenant_id in self.tenants else (),
            self.hosts,
            {tenant_id: self.hosts_by_tenant[tenant_id]} if tenant_id in self.hosts_by_tenant else {},
            self.large and self.large.of(tenant_id),
        )

    def passed_over(self) -> tuple[str, list[Any]]:
        """The condition that leaves their timers out."""
        conditions, values = ["1 = 1"], list[Any]()
        for column, names in (("tenant_id", [t.hex for t in self.tenants]), ("host", list(self.hosts))):
            if names:
                conditions.append(f"{column} NOT IN ({placeholders(names)})")
                values += names
        if self.hosts_by_tenant:
            # Not one condition a tenant: SQLite joins no more than a thousand.
            cases = [
                f"WHEN %s THEN host NOT IN ({placeholders(hosts)})" for hosts in self.hosts_by_tenant.values()
            ]
            conditions.append(f"CASE tenant_id {' '.join(cases)} ELSE 1 = 1 END")
            values += [
                value for tenant, hosts in self.hosts_by_tenant.items() for value in (tenant.hex, *hosts)
            ]
        if self.large:
            passed_over, more = self.large.passed_over()
            conditions.append(f"({passed_over} OR request_bytes < %s)")  # which alone is not in the index
            values += [*more, LARGE_REQUEST_BYTES]
        return " AND ".join(conditions), values


NOTHING_HELD_BACK = HeldBack()


class Search(NamedTuple):
    """Where a pass looks: with `since` only among what has become due after that, and past no old backlog."""

    shards: Sequence[int]
    now: datetime
    held_back: HeldBack
    since: datetime | None = None


@dataclass
class Poller:
    """One pass takes what is due in any order. Only when more is due than a pass can take does order matter:
    then each tenant that has something due gets its share, the longest due first.

    What is held back is passed over in vain, and may be much. After a search that found few beside it, passes look for
    a while only for what has become due since: that goes at once, whatever the backlog."""

    leases: Leases
    crowded: bool = False
    clock: Callable[[], float] = time.monotonic  # the database's may be set back
    _turn: int = 0
    _tenants: list[uuid.UUID] = field(default_factory=list)
    _tenants_read_at: float | None = None
    _rest_until: float = 0.0
    _since: datetime | None = None

    def seconds_until_due(self) -> float | None:
        """How long until the next timer of the owned shards is due (negative: overdue); None: there is none."""
        shards = list(self.leases.held)
        if not shards:
            return None
        with connection.cursor() as cursor:
            now, values = render_now()
            cursor.execute(_NEXT_DUE.format(marks=placeholders(shards), now=now), [*values, *shards])
            first, now = cursor.fetchone()
        return None if first is None else (as_utc(first) - as_utc(now)).total_seconds()

    def claim_due(
        self,
        limit: int,
        held_back: HeldBack = NOTHING_HELD_BACK,
        admit: Callable[[Timer], bool] = lambda timer: True,
    ) -> list[Timer]:
        """Inside the caller's transaction: lock what is due, mark it reached under this node's versions.

        What `admit` refuses stays as it is: it would exceed somebody's ceiling within this very batch.
        """
        shards = list(self.leases.held)
        if not shards or limit < 1:
            return []
        now = db_now()
        due = [timer for timer in self._due(Search(shards, now, held_back), limit) if admit(timer)]
        self.leases.fence({timer.shard_id for timer in due})
        mark_reached(due, now, self.leases.held)
        return due

    def _due(self, search: Search, limit: int) -> list[Timer]:
        if not search.held_back:
            return self._shared(search, limit)
        began = self.clock()
        if began < self._rest_until:
            return self._shared(search._replace(since=self._since), limit)
        due = self._shared(search, limit)
        if len(due) < max(limit, MIN_SEARCH_YIELD):
            ended = self.clock()
            self._rest_until, self._since = (
                ended + REST_FACTOR * (ended - began),
                search.now - MAX_COMMIT_DELAY,
            )
        return due

    def _shared(self, search: Search, limit: int) -> list[Timer]:
        if not self.crowded:
            # In the order of the index: PostgreSQL would rather read the table, for it takes 'is scheduled' and
            # 'is past' for independent and so expects most of it to be due.
            due = _select("", [], search, limit, "shard_id, due_at")
            if len(due) < limit:
                return due
        due = self._fair_due(search, limit)
        self.crowded = len(due) == limit
        return due

    def _fair_due(self, search: Search, limit: int) -> list[Timer]:
        due: list[Timer] = []
        tenants = self._tenants_in_turn(search)
        share = max(MIN_TENANT_SHARE, limit // max(1, len(tenants)))
        rest: list[uuid.UUID] = []
        for served, tenant in enumerate(tenants, 1):
            taken = _of_tenant(tenant, search, min(share, limit - len(due)))
            due += taken
            if len(due) == limit:
                self._turn += served
                return due
            if len(taken) == share:
                rest.append(tenant)
        self._turn += 1
        # What the quiet tenants left is for the busy ones.
        for tenant in rest:
            seen = {timer.service_call_id for timer in due if timer.tenant_id == tenant}
            more = _of_tenant(tenant, search, limit - len(due) + len(seen))
            due += [timer for timer in more if timer.service_call_id not in seen]
            if len(due) >= limit:
                break
        return due[:limit]

    def _tenants_in_turn(self, search: Search) -> list[uuid.UUID]:
        """Whoever has something due and may begin it, those first whom the last pass did not come to."""
        if self._tenants_read_at is None or self.clock() - self._tenants_read_at > TENANTS_CACHE_SECONDS:
            by = search.now + timedelta(seconds=TENANTS_CACHE_SECONDS)
            self._tenants, self._tenants_read_at = _tenants_with_due(by), self.clock()
        tenants = [tenant for tenant in self._tenants if tenant not in search.held_back.tenants]
        cut = self._turn % max(1, len(tenants))
        return tenants[cut:] + tenants[:cut]


def mark_reached(due: Sequence[Timer], now: datetime, versions: Mapping[int, int]) -> None:
    """`versions`: of the shards, under which they are reached."""
    update_rows(
        TimerSchedule,
        "state = 'Reached', reached_at = {reached_at}, claim_version = {claim_version}",
        "tenant_id = {tenant_id} AND service_call_id = {service_call_id} AND state = 'Scheduled'",
        [(now, versions[t.shard_id], t.tenant_id, t.service_call_id) for t in due],
    )


# One seek a shard, whatever the backlog.
_NEXT_DUE = """
SELECT MIN(first_due), {now} FROM (
    SELECT (
        SELECT t.due_at FROM timer_schedules t
        WHERE t.shard_id = s.shard_id AND t.state = 'Scheduled' ORDER BY t.due_at LIMIT 1
    ) AS first_due
    FROM timer_shards s WHERE s.shard_id IN ({marks})
) AS firsts
"""


# One seek a tenant, where DISTINCT would read every timer that is due.
_TENANTS_WITH_DUE = """
SELECT tenant_id FROM tenants WHERE EXISTS (
    SELECT 1 FROM timer_schedules t
    WHERE t.tenant_id = tenants.tenant_id AND t.state = 'Scheduled' AND t.due_at <= %s
) ORDER BY tenant_id
"""


def _tenants_with_due(by: datetime) -> list[uuid.UUID]:
    with connection.cursor() as cursor:
        cursor.execute(_TENANTS_WITH_DUE, [_to_database(by)])
        return [_tenant(tenant_id) for (tenant_id,) in cursor.fetchall()]


def _of_tenant(tenant: uuid.UUID, search: Search, limit: int) -> list[Timer]:
    of_its = search._replace(held_back=search.held_back.of(tenant))
    return _select("tenant_id = %s AND", [tenant.hex], of_its, limit, "due_at")


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
        passed_over, names = search.held_back.passed_over()
        sql += f" AND {passed_over}"
        values += names
    with connection.cursor() as cursor:
        cursor.execute(f"{sql} ORDER BY {order} LIMIT {limit} {for_update(skip_locked=True)}", values)
        return [_to_timer(row) for row in cursor.fetchall()]


def _to_timer(row: tuple[Any, ...]) -> Timer:
    tenant_id, service_call_id, correlation_id, due_at, *others = row
    return Timer(
        _tenant(tenant_id), as_uuid(service_call_id), as_uuid(correlation_id), as_utc(due_at), *others
    )


@lru_cache(1024)
def _tenant(value: Any) -> uuid.UUID:
    """The same few again and again."""
    return as_uuid(value)


def _to_database(instant: datetime) -> Any:
    return connection.ops.adapt_datetimefield_value(instant)

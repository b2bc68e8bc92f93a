"""Finding what is due, fairly, in the shards that this node owns."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from django.db import connection

from eventservice.kernel.bulk import update_rows
from eventservice.kernel.leases import Leases
from eventservice.kernel.now import as_utc, db_now
from timers.models import TimerSchedule

# What one tenant may put into a batch while others wait, at the least.
LEAST_SHARE = 20
TENANTS_KEPT = timedelta(seconds=1)


class DueTimer(NamedTuple):
    tenant_id: uuid.UUID
    service_call_id: uuid.UUID
    due_at: datetime
    shard_id: int
    lane: str


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Who has all that they may have in flight: their timers wait, and nobody else's."""

    tenants: Collection[uuid.UUID] = ()
    lanes: Collection[str] = ()

    def __bool__(self) -> bool:
        return bool(self.tenants or self.lanes)


NOBODY = HeldBack()


@dataclass
class Poller:
    """One pass takes what is due in any order. Only when more is due than a pass can take does order matter:
    then each tenant that has something due gets its share, the longest due first."""

    leases: Leases
    crowded: bool = False
    _turn: int = 0
    _tenants: list[uuid.UUID] = field(default_factory=list)
    _tenants_read_at: datetime | None = None

    def seconds_until_due(self) -> float | None:
        """How long until the next timer of the owned shards is due (negative: overdue); None: there is none."""
        shards = list(self.leases.held)
        if not shards:
            return None
        with connection.cursor() as cursor:
            cursor.execute(_NEXT_DUE.format(marks=_marks(shards)), shards)
            first = cursor.fetchone()[0]
        return None if first is None else (as_utc(first) - db_now()).total_seconds()

    def claim_due(
        self, limit: int, held_back: HeldBack = NOBODY, admit: Callable[[DueTimer], bool] = lambda timer: True
    ) -> list[DueTimer]:
        """Inside the caller's transaction: lock what is due, mark it reached under this node's versions.

        What `admit` refuses stays as it is: it would exceed somebody's ceiling within this very batch.
        """
        shards = list(self.leases.held)
        if not shards or limit < 1:
            return []
        now = db_now()
        due = [timer for timer in self._due(shards, now, limit, held_back) if admit(timer)]
        self.leases.fence({timer.shard_id for timer in due})
        self._mark_reached(due, now)
        return due

    def _due(self, shards: Sequence[int], now: datetime, limit: int, held_back: HeldBack) -> list[DueTimer]:
        if not self.crowded:
            # In the order of the index: PostgreSQL would rather read the table, for it takes 'is scheduled' and
            # 'is past' for independent and so expects most of it to be due.
            due = self._select("", [], shards, now, limit, held_back, "ORDER BY shard_id, due_at")
            self.crowded = len(due) == limit
            if not self.crowded:
                return due
        due = self._fair_due(shards, now, limit, held_back)
        self.crowded = len(due) == limit
        return due

    def _fair_due(
        self, shards: Sequence[int], now: datetime, limit: int, held_back: HeldBack
    ) -> list[DueTimer]:
        due: list[DueTimer] = []
        tenants = [tenant for tenant in self._tenants_in_turn(now) if tenant not in held_back.tenants]
        lanes_only = HeldBack(lanes=held_back.lanes)
        share = max(LEAST_SHARE, limit // max(1, len(tenants)))
        rest: list[uuid.UUID] = []
        for served, tenant in enumerate(tenants, 1):
            taken = self._of_tenant(tenant, shards, now, min(share, limit - len(due)), lanes_only)
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
            more = self._of_tenant(tenant, shards, now, limit - len(due) + len(seen), lanes_only)
            due += [timer for timer in more if timer.service_call_id not in seen]
            if len(due) >= limit:
                break
        return due[:limit]

    def _of_tenant(
        self, tenant: uuid.UUID, shards: Sequence[int], now: datetime, limit: int, held_back: HeldBack
    ) -> list[DueTimer]:
        return self._select(
            "tenant_id = %s AND", [tenant.hex], shards, now, limit, held_back, "ORDER BY due_at"
        )

    def _select(
        self,
        condition: str,
        values: list[Any],
        shards: Sequence[int],
        now: datetime,
        limit: int,
        held_back: HeldBack,
        order: str = "",
    ) -> list[DueTimer]:
        sql = (
            f"SELECT tenant_id, service_call_id, due_at, shard_id, lane FROM timer_schedules"
            f" WHERE {condition} state = 'Scheduled' AND due_at <= %s AND shard_id IN ({_marks(shards)})"
        )
        values = [*values, _to_database(now), *shards]
        for column, names in (
            ("tenant_id", [t.hex for t in held_back.tenants]),
            ("lane", list(held_back.lanes)),
        ):
            if names:
                sql += f" AND {column} NOT IN ({_marks(names)})"
                values += names
        with connection.cursor() as cursor:
            cursor.execute(f"{sql} {order} LIMIT {limit} {_skip_locked()}", values)
            return [_due_timer(row) for row in cursor.fetchall()]

    def _tenants_in_turn(self, now: datetime) -> list[uuid.UUID]:
        """All tenants that have timers, those first whom the last pass did not come to."""
        if self._tenants_read_at is None or now - self._tenants_read_at > TENANTS_KEPT:
            self._tenants, self._tenants_read_at = _tenants_with_timers(), now
        cut = self._turn % max(1, len(self._tenants))
        return self._tenants[cut:] + self._tenants[:cut]

    def _mark_reached(self, due: Sequence[DueTimer], now: datetime) -> None:
        update_rows(
            TimerSchedule,
            "state = 'Reached', reached_at = {reached_at}, claim_version = {claim_version}",
            "tenant_id = {tenant_id} AND service_call_id = {service_call_id} AND state = 'Scheduled'",
            [(now, self.leases.held[t.shard_id], t.tenant_id, t.service_call_id) for t in due],
        )


# One seek a shard, whatever the backlog.
_NEXT_DUE = """
SELECT MIN(first_due) FROM (
    SELECT (
        SELECT t.due_at FROM timer_schedules t
        WHERE t.shard_id = s.shard_id AND t.state = 'Scheduled' ORDER BY t.due_at LIMIT 1
    ) AS first_due
    FROM timer_shards s WHERE s.shard_id IN ({marks})
) AS firsts
"""


def _tenants_with_timers() -> list[uuid.UUID]:
    """A loose index scan: one seek a tenant, where DISTINCT would read every timer."""
    tenants: list[uuid.UUID] = []
    timers = TimerSchedule.objects.across_tenants().order_by("tenant_id")
    following = timers.values_list("tenant_id", flat=True).first()
    while following is not None:
        tenants.append(following)
        following = timers.filter(tenant_id__gt=following).values_list("tenant_id", flat=True).first()
    return tenants


def _skip_locked() -> str:
    return "" if connection.vendor == "sqlite" else "FOR UPDATE SKIP LOCKED"


def _marks(values: Sequence[Any]) -> str:
    return ", ".join(["%s"] * len(values))


def _due_timer(row: tuple[Any, ...]) -> DueTimer:
    tenant_id, service_call_id, due_at, shard_id, lane = row
    return DueTimer(_tenant(tenant_id), _uuid(service_call_id), as_utc(due_at), shard_id, lane)


@lru_cache(1024)
def _tenant(value: Any) -> uuid.UUID:
    """The same few again and again."""
    return _uuid(value)


def _uuid(value: Any) -> uuid.UUID:
    return value if isinstance(value, uuid.UUID) else uuid.UUID(value)


def _to_database(instant: datetime) -> Any:
    return connection.ops.adapt_datetimefield_value(instant)

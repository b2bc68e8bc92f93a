"""Find due timers in the shards that this node owns, fairly among tenants."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from eventservice.db.leases import Leases
from eventservice.db.now import db_now
from timers.persistence import timer_persistence
from timers.port import NOTHING_HELD_BACK, HeldBack, PollScope, Timer, TimerPersistencePort

# While others wait, each tenant may fill at least this much of a batch.
MIN_TENANT_SHARE = 20
TENANTS_CACHE_SECONDS = 0.25
# A search of everything that is due can take long when much of it is held back, and on SQLite it holds the only write
# lock. After one that found fewer timers than this, the next full search waits for REST_FACTOR times its duration.
MIN_SEARCH_YIELD = 50
REST_FACTOR = 5
# A timer that is due at once may be committed this much later, so a search for new timers starts that much earlier.
MAX_COMMIT_DELAY = timedelta(seconds=1)


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
    list_tenant_ids: Callable[[], Iterable[uuid.UUID]]  # tenants belong to another module
    crowded: bool = False
    clock: Callable[[], float] = time.monotonic  # the database's clock may be set back
    persistence: TimerPersistencePort = timer_persistence
    _turn: int = 0
    _tenants: list[uuid.UUID] = field(default_factory=list)
    _tenants_read_at: float | None = None
    _rest_until: float = 0.0
    _since: datetime | None = None

    def seconds_until_due(self) -> float | None:
        """Return the seconds until the next timer of the owned shards is due (negative if overdue), or None."""
        shards = list(self.leases.held)
        return self.persistence.find_seconds_until_due(shards) if shards else None

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
        found = self._find_due(now, limit, PollScope(shards, held_back))
        due = [timer for timer in found if admit(timer)]
        self.leases.fence({timer.shard_id for timer in due})
        self.persistence.mark_fired(due, now, self.leases.held)
        return due

    def claim_again(self, timer: Timer) -> list[Timer]:
        """Claim one timer that was found before, in the caller's transaction, if it is still due."""
        now = db_now()
        found = self.persistence.find_due_timer(timer.tenant_id, timer.service_call_id, now)
        due = [found] if found else []
        self.leases.fence({timer.shard_id})
        self.persistence.mark_fired(due, now, self.leases.held)
        return due

    def _find_due(self, now: datetime, limit: int, scope: PollScope) -> list[Timer]:
        if not scope.held_back:
            return self._find_batch(now, limit, scope)
        started_at = self.clock()
        if started_at < self._rest_until:
            return self._find_batch(now, limit, scope._replace(since=self._since))
        due = self._find_batch(now, limit, scope)
        if len(due) < max(limit, MIN_SEARCH_YIELD):
            ended_at = self.clock()
            self._rest_until = ended_at + REST_FACTOR * (ended_at - started_at)
            self._since = now - MAX_COMMIT_DELAY
        return due

    def _find_batch(self, now: datetime, limit: int, scope: PollScope) -> list[Timer]:
        if not self.crowded:
            due = self.persistence.find_due_in_shards(now, limit, scope)
            if len(due) < limit:
                return due
        due = self._find_fairly(now, limit, scope)
        self.crowded = len(due) == limit
        return due

    def _find_fairly(self, now: datetime, limit: int, scope: PollScope) -> list[Timer]:
        due: list[Timer] = []
        tenants = self._list_tenants_in_turn(now, scope.held_back)
        share = max(MIN_TENANT_SHARE, limit // max(1, len(tenants)))
        busy: list[uuid.UUID] = []
        for served, tenant in enumerate(tenants, 1):
            found = self.persistence.find_due(tenant, now, min(share, limit - len(due)), scope)
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
            more = self.persistence.find_due(tenant, now, limit - len(due) + len(seen), scope)
            due += [timer for timer in more if timer.service_call_id not in seen]
            if len(due) >= limit:
                break
        return due[:limit]

    def _list_tenants_in_turn(self, now: datetime, held_back: HeldBack) -> list[uuid.UUID]:
        """Return the tenants with due timers that are not held back, beginning where the last pass stopped."""
        if self._tenants_read_at is None or self.clock() - self._tenants_read_at > TENANTS_CACHE_SECONDS:
            by = now + timedelta(seconds=TENANTS_CACHE_SECONDS)
            self._tenants = self.persistence.find_tenants_with_due(self.list_tenant_ids(), by)
            self._tenants_read_at = self.clock()
        tenants = [tenant for tenant in self._tenants if tenant not in held_back.tenants]
        start = self._turn % max(1, len(tenants))
        return tenants[start:] + tenants[:start]

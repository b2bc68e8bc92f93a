"""The division of a timer store's shards among the processes that share it. Safety rests on the rows alone."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import NamedTuple

from eventservice.db.leases import pick_share
from eventservice.kernel.logging import get_logger
from timers.stores.port import Claim, Member, TimerStore

log = get_logger(__name__)

# A member whose heartbeat has not changed for this long, by the clock of whoever watches it, is dead.
DEATH_SECONDS = 15.0
# Claims and releases in one pass, and owned shards whose records are read again.
MAX_MOVES = 256
CHECKED_SHARDS = 16


class _Watched(NamedTuple):
    beats: int
    since: float


class StoreMembership:
    """This process as a member of those that share a store, and the shards that it owns."""

    def __init__(
        self,
        store: TimerStore,
        clock: Callable[[], float],
        create_id: Callable[[], uuid.UUID],
        metadata: Mapping[str, str],
    ) -> None:
        """`clock` goes on while the machine is suspended."""
        self._store = store
        self._clock = clock
        self._create_id = create_id
        self._metadata = metadata
        self._watched: dict[uuid.UUID, _Watched] = {}
        self._checked = 0
        self._join()

    def _join(self) -> None:
        self._member = Member(self._create_id(), 0, self._metadata)
        self._claims: dict[int, Claim] = {}
        self._share: set[int] = set()
        self._shared_among: tuple[frozenset[uuid.UUID], int] | None = None

    @property
    def shards(self) -> list[int]:
        return sorted(self._claims)

    def beat(self) -> None:
        """Send a heartbeat. A process that was declared dead joins again, as another member without shards."""
        self._member = self._member._replace(beats=self._member.beats + 1)
        if not self._store.beat(self._member):
            log.warning("timer_store_member_removed", member=str(self._member.id))
            self._join()

    def rebalance(self, num_shards: int) -> None:
        """Remove dead members, release the shards that are now others', and claim the free ones of this member's share."""
        if not self._member.beats:
            return  # the others do not know of it yet
        live = self._find_live()
        if (live, num_shards) != self._shared_among:
            self._share = pick_share(range(num_shards), self._member.id, live)
            self._shared_among = live, num_shards
        self._release(sorted(self._claims.keys() - self._share)[:MAX_MOVES])
        self._claim(sorted(self._share - self._claims.keys())[:MAX_MOVES], live)
        self._check_claims()

    def leave(self) -> None:
        """Release all shards, and the membership, so that others go on at once."""
        self._release(self.shards)
        if self._member.beats:
            self._store.remove_member(self._member)

    def _find_live(self) -> frozenset[uuid.UUID]:
        now = self._clock()
        members = [member for member in self._store.members() if member.id != self._member.id]
        watched = {}
        for member in members:
            known = self._watched.get(member.id)
            is_same = known is not None and known.beats == member.beats
            watched[member.id] = known if known and is_same else _Watched(member.beats, now)
        self._watched = watched
        dead = {
            member.id
            for member in members
            if now - watched[member.id].since > DEATH_SECONDS and self._store.remove_member(member)
        }
        if dead:
            log.warning("timer_store_members_dead", members=sorted(map(str, dead)))
        return frozenset({self._member.id} | watched.keys() - dead)

    def _release(self, shards: list[int]) -> None:
        if shards:
            self._store.release([self._claims[shard] for shard in shards])
            for shard in shards:
                del self._claims[shard]

    def _claim(self, shards: list[int], live: frozenset[uuid.UUID]) -> None:
        if not shards:
            return
        alive = {str(member) for member in live} - {str(self._member.id)}
        for seen in self._store.shards(shards):
            if seen.owner in alive:
                continue  # it releases the shard when it sees this member
            claim = self._store.claim(seen, str(self._member.id), self._metadata)
            if claim is not None:
                self._claims[seen.shard] = claim

    def _check_claims(self) -> None:
        """Forget shards that others have claimed since, a few in each pass."""
        owned = self.shards
        if not owned:
            return
        start = self._checked % len(owned)
        checked = (owned + owned)[start : start + min(CHECKED_SHARDS, len(owned))]
        self._checked = start + len(checked)
        for seen in self._store.shards(checked):
            if seen.version != self._claims[seen.shard].version:
                del self._claims[seen.shard]

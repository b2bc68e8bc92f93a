"""A timer store on Cassandra, with conditional batches within the partition of a shard.

A timer has two rows in its shard: its own, whose key begins with its time, and a pointer under its UUID, which says where the other
one is. Each batch that creates, moves or removes a timer writes both.

Cassandra keeps a tombstone of each removed row for days, and reads have to skip them. They are where the due timers of a shard
are. So a shard has two floors: no row is created before the write floor, and reads begin at the read floor.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

from eventservice.kernel.findings import Finding, check
from timers.stores.cassandra.address import CassandraAddress
from timers.stores.cassandra.client import APPLIED, SMALL_ROWS_IN_FETCH, CassandraClient
from timers.stores.cassandra.rows import (
    Row,
    build_row,
    encode_json,
)
from timers.stores.cassandra.statements import (
    TIMER_COLUMNS,
    Statement,
    build_delete,
    build_floor_condition,
    build_floor_update,
    build_insert,
    build_key,
    build_select,
    build_select_all,
    build_select_floors,
    build_update,
)
from timers.stores.cassandra.table import (
    KEY,
    READ_COLUMNS,
    TABLE,
    build_keyspace,
    build_table,
    find_differences,
)
from timers.stores.encoding import (
    build_declaration,
    build_due_position,
    decode_position,
    encode_position,
    parse_due_position,
    read_declaration,
    split_batches,
)
from timers.stores.port import (
    EPOCH,
    RESERVED_SHARD,
    Claim,
    Member,
    NamespaceDeclaration,
    NextAttempt,
    Position,
    QualifiedNamespace,
    RowType,
    ShardBacklog,
    ShardOwnership,
    StoredTimer,
    StoreUnavailable,
    Take,
    TimerConflict,
    TimerKey,
    TimerPage,
    TimerStoreError,
    compute_namespace_uuid,
    round_up,
)
from timers.stores.rows import build_progress_columns, read_timer_row
from timers.stores.store_spec import StoreSpec

T = TypeVar("T")

# How many timers one batch changes. If one of them is in another state, the rest is tried again.
MAX_TIMERS_IN_BATCH = 50
# How many shards of a namespace one page of a list looks through, and how many of them at once.
MAX_SHARDS_IN_PAGE, MAX_SHARDS_AT_ONCE = 64, 16
# How often a timer that is being moved is looked for.
MAX_LOOKUPS = 5
# How far the floors stay behind, and how far the oldest timer must be ahead of them before they are raised. Raising them
# takes a few writes, and each timer that was removed since costs every read of due timers a little.
FLOOR_DELAY, FLOOR_STEP = timedelta(minutes=1), timedelta(minutes=5)

SHARD_COLUMNS = "shard_id, shard_version, shard_owner_id, shard_claimed_at, shard_metadata"
DUE_FROM_FLOOR = "AND timer_execute_at >= :floor AND timer_execute_at <= :until LIMIT :rows"
DUE_AFTER = "AND (timer_execute_at, timer_uuid) > (:after, :after_uuid) AND (timer_execute_at) <= (:until) LIMIT :rows"
FROM_FLOOR = "AND timer_execute_at >= :floor"
OF_NAMESPACE = f"{FROM_FLOOR} AND timer_namespace = :timer_namespace AND timer_id > :after_id ALLOW FILTERING"


class Floors(NamedTuple):
    """The floors of a shard, and the time of the server, which is None in a shard that has never been written."""

    write: datetime | None = None
    read: datetime | None = None
    clock: datetime | None = None


class Change(NamedTuple):
    """A change of the row at a key, which is made if columns have the values that were seen."""

    key: Mapping[str, object]
    seen: Mapping[str, object]
    statements: Sequence[Statement]


def build_store(spec: StoreSpec, cell: str) -> CassandraTimerStore:
    """Build the store of a URL, without connecting. Raise ValueError if the URL cannot be used."""
    return CassandraTimerStore(spec.name, CassandraAddress.parse(spec.parts), cell)


class CassandraTimerStore:
    def __init__(self, name: str, address: CassandraAddress, cell: str) -> None:
        self.name = name
        self._address = address
        self._cell = cell
        self._client = CassandraClient(name, address)

    # --- schema -----------------------------------------------------------------------------------------------

    def migrate(self) -> None:
        keyspace, replication = self._address.keyspace, self._address.replication
        if not self._has_keyspace():
            if replication is None:
                raise TimerStoreError(
                    f"{self.name}: there is no keyspace {keyspace}: create it, or say in the URL how it is"
                    " replicated, such as ?replication=3"
                )
            self._client.change_schema(build_keyspace(keyspace, replication))
        self._client.change_schema(build_table(keyspace))
        if differences := find_differences(self._read_columns()):
            raise TimerStoreError(f"{self.name}: {self._explain(differences)}")

    def check(self) -> list[Finding]:
        (local,) = self._client.read_system("SELECT release_version, data_center FROM system.local")
        text = f"{self.name}: Cassandra {local['release_version']} in the data center {local['data_center']}"
        server = check("timer_store_server", True, text)
        columns = self._read_columns()
        if not columns:
            text = f"{self.name}: there is no table {TABLE} in the keyspace {self._address.keyspace}"
            remedy = f"Run `manage.py timer_store migrate {self.name}`."
            return [server, check("timer_store_table", False, text, remedy)]
        if differences := find_differences(columns):
            text = f"{self.name}: {self._explain(differences)}"
            remedy = "Name another keyspace in TIMER_STORES, and run `manage.py timer_store migrate` with it."
            return [server, check("timer_store_table", False, text, remedy)]
        return [server, check("timer_store_table", True, f"{self.name}: complete")]

    def _has_keyspace(self) -> bool:
        text = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?"
        return bool(self._client.read_system(text, self._address.keyspace))

    def _read_columns(self) -> list[Row]:
        return self._client.read_system(READ_COLUMNS, self._address.keyspace, TABLE)

    def _explain(self, differences: Sequence[str]) -> str:
        where = f"the table {TABLE} in the keyspace {self._address.keyspace}"
        return f"{where} cannot be used: {'; '.join(differences)}"

    def read_clock(self) -> datetime:
        (row,) = self._client.read_system("SELECT toTimestamp(now()) AS clock FROM system.local")
        clock: datetime = row["clock"]
        return clock

    def close(self) -> None:
        self._client.close()

    # --- members and namespaces -------------------------------------------------------------------------------

    def members(self) -> list[Member]:
        rows = self._select_reserved(RowType.MEMBER)
        return [Member(row["timer_uuid"], row["shard_version"], row["shard_metadata"]) for row in rows]

    def beat(self, member: Member) -> bool:
        key = _build_member_key(member)
        if member.beats == 1:
            columns = {"shard_version": 1, "shard_metadata": encode_json(dict(member.metadata))}
            if self._client.write(build_insert({**key, **columns}, if_absent=True)):
                return True
        return self._client.write(build_update(key, {"shard_version": member.beats}, {}))

    def remove_member(self, member: Member) -> bool:
        return self._client.write(build_delete(_build_member_key(member), {"shard_version": member.beats}))

    def namespaces(self) -> list[NamespaceDeclaration]:
        return [
            read_declaration(row["timer_namespace"], row["shard_version"], row["shard_metadata"])
            for row in self._select_reserved(RowType.NAMESPACE)
        ]

    def declare_namespace(
        self, namespace: QualifiedNamespace, num_shards: int, fingerprint: Mapping[str, str]
    ) -> NamespaceDeclaration:
        columns = {
            "timer_namespace": str(namespace),
            "shard_version": 1,
            "shard_metadata": encode_json(build_declaration(num_shards, fingerprint)),
        }
        row = {**_build_namespace_key(namespace), **columns}
        if self._client.write(build_insert(row, if_absent=True)):
            return NamespaceDeclaration(namespace, num_shards, dict(fingerprint), 1)
        return next(declared for declared in self.namespaces() if declared.namespace == namespace)

    def change_fingerprint(self, seen: NamespaceDeclaration, fingerprint: Mapping[str, str]) -> bool:
        metadata = encode_json(build_declaration(seen.num_shards, fingerprint))
        changes = {"shard_version": seen.version + 1, "shard_metadata": metadata}
        key = _build_namespace_key(seen.namespace)
        return self._client.write(build_update(key, changes, {"shard_version": seen.version}))

    def _select_reserved(self, row_type: RowType) -> list[Row]:
        columns = "timer_uuid, timer_namespace, shard_version, shard_metadata"
        return self._client.read(build_select_all(columns, RESERVED_SHARD, row_type))

    # --- shards -----------------------------------------------------------------------------------------------

    def shards(self, shards: Sequence[int]) -> list[ShardOwnership]:
        distinct = list(dict.fromkeys(shards))
        answers = self._client.read_each(
            [build_select(SHARD_COLUMNS, build_key(shard, RowType.SHARD)) for shard in distinct]
        )
        found = {row["shard_id"]: _read_shard(row) for rows in answers for row in rows}
        return [found.get(shard, ShardOwnership(shard, 0)) for shard in shards]

    def claim(self, seen: ShardOwnership, owner: str, metadata: Mapping[str, str]) -> Claim | None:
        key = build_key(seen.shard, RowType.SHARD)
        claim = Claim(seen.shard, seen.version + 1)
        columns = {
            "shard_version": claim.version,
            "shard_owner_id": owner,
            "shard_metadata": encode_json(dict(metadata)),
        }
        seen_version = {"shard_version": seen.version or None}
        statement = build_update(key, columns, seen_version, ("shard_claimed_at", "updated_at"))
        return claim if self._client.write(statement) else None

    def release(self, claims: Sequence[Claim]) -> None:
        self._client.write_each(
            [
                [
                    build_update(
                        build_key(claim.shard, RowType.SHARD),
                        {"shard_owner_id": None},
                        {"shard_version": claim.version},
                    )
                ]
                for claim in claims
            ]
        )

    # --- timers -----------------------------------------------------------------------------------------------

    def put(self, timer: StoredTimer, replaces: StoredTimer | None, now: datetime) -> None:
        build_row(timer)  # raises TimerRefused
        if replaces is None:
            written = self._store(timer, None, {}) is not None
        else:
            state = _build_state(replaces)
            written = not replaces.is_taken(now) and self._find_and_change(
                replaces.key, replaces.execute_at, lambda place: self._store(timer, place, state) is not None
            )
        if written:
            return
        stored = self.get(timer.key)
        if stored is None or stored.revision != timer.revision:
            raise TimerConflict(stored)

    def get(self, key: TimerKey) -> StoredTimer | None:
        for _ in range(MAX_LOOKUPS):
            place = self._read_pointer(key)
            if place is None:
                return None
            timer = self._read_timer(key, place)
            if timer is not None:
                return timer
        raise StoreUnavailable(f"{self.name}: the timer was moved while it was read, {MAX_LOOKUPS} times")

    def delete(self, timer: StoredTimer, now: datetime) -> bool:
        state = _build_state(timer)

        def delete(place: datetime) -> bool:
            return self._client.write(*_build_removal(timer.key, place, state).statements)

        return not timer.is_taken(now) and self._find_and_change(timer.key, timer.execute_at, delete)

    def move(self, timer: StoredTimer, now: datetime, execute_at: datetime) -> StoredTimer | None:
        if timer.is_taken(now):
            return None
        moved, state = timer.build_moved(execute_at), _build_state(timer)
        new_place = self._find_and_change(
            timer.key, timer.execute_at, lambda place: self._store(moved, place, state)
        )
        return None if new_place is None else replace(moved, execute_at=new_place)

    def due(
        self, shard: int, now: datetime, until: datetime, after: Position | datetime | None, limit: int
    ) -> TimerPage:
        if not after:
            return self.first_due([shard], now, until, limit, own=True)[0]
        after_time, after_uuid = parse_due_position(after)
        if after_time > until:  # which Cassandra would refuse
            return TimerPage([], None)
        statement = _select_due(shard, until, limit, DUE_AFTER, after=after_time, after_uuid=after_uuid)
        return self._build_due_page(list(map(read_timer_row, self._client.read(statement))), now, limit)

    def first_due(
        self, shards: Sequence[int], now: datetime, until: datetime, limit: int, *, own: bool
    ) -> list[TimerPage]:
        floors = self._read_floors(shards)
        statements = [
            _select_due(shard, until, limit, DUE_FROM_FLOOR, floor=one.read or EPOCH)
            for shard, one in zip(shards, floors, strict=True)
        ]
        pages = []
        for shard, one, rows in zip(shards, floors, self._client.read_each(statements), strict=True):
            timers = list(map(read_timer_row, rows))
            self._raise_floors(shard, one, min([now, *(timer.execute_at for timer in timers[:1])]))
            page = self._build_due_page(timers, now, limit)
            pages.append(page if own else page.leave_out_taken(now))
        return pages

    def _build_due_page(self, timers: Sequence[StoredTimer], now: datetime, limit: int) -> TimerPage:
        found = [timer for timer in timers if timer.taken_until <= now or timer.taken_by == self._cell]
        return TimerPage(found, build_due_position(timers[-1]) if len(timers) == limit else None)

    def take(self, timers: Sequence[StoredTimer], now: datetime, until: datetime) -> list[StoredTimer]:
        def build_change(timer: StoredTimer, taken: StoredTimer) -> Change:
            key, state = _build_timer_key(timer.key, timer.execute_at), _build_state(timer)
            changes = {
                "timer_takes": taken.takes,
                "timer_taken_until": taken.taken_until,
                "timer_taken_by": taken.taken_by,
            }
            return Change(key, state, [build_update(key, changes, state)])

        tried = [timer for timer in timers if not timer.is_taken(now)]
        taken = [
            replace(timer, takes=timer.takes + 1, taken_until=round_up(until), taken_by=self._cell)
            for timer in tried
        ]
        written = self._change_each(list(map(build_change, tried, taken)))
        return [timer for timer, is_written in zip(taken, written, strict=True) if is_written]

    def postpone(self, timer: StoredTimer, now: datetime, until: datetime) -> bool:
        changes = {"timer_taken_until": round_up(until), "timer_taken_by": None}
        state = _build_state(timer)

        def postpone(place: datetime) -> bool:
            return self._client.write(build_update(_build_timer_key(timer.key, place), changes, state))

        return not timer.is_taken(now) and self._find_and_change(timer.key, timer.execute_at, postpone)

    def reschedule(self, attempts: Sequence[NextAttempt]) -> int:
        by_shard = defaultdict(list)
        for attempt in attempts:
            by_shard[attempt.take.key.shard].append(attempt)
        count = 0
        with ThreadPoolExecutor(MAX_SHARDS_AT_ONCE) as executor:
            # Writes about one shard would only wait for each other, so each round has one of each shard.
            for of_each_shard in zip_longest(*by_shard.values()):
                for batch in split_batches(list(filter(None, of_each_shard)), MAX_SHARDS_AT_ONCE):
                    count += sum(executor.map(self._reschedule, batch))
        return count

    def _reschedule(self, attempt: NextAttempt) -> bool:
        take, execute_at, progress = attempt
        execute_at, seen = round_up(execute_at), self._build_take(take)
        changes = {
            "timer_taken_until": EPOCH,
            "timer_taken_by": None,
            **({} if progress is None else build_progress_columns(progress)),
        }

        def reschedule(place: datetime) -> bool:
            if place == execute_at:
                return self._client.write(build_update(_build_timer_key(take.key, place), changes, seen))
            timer = self._read_timer(take.key, place)
            if timer is None or timer.take != take._replace(execute_at=place):
                return False
            moved = replace(
                timer,
                execute_at=execute_at,
                taken_until=EPOCH,
                taken_by=None,
                progress=progress or timer.progress,
            )
            return self._store(moved, place, seen) is not None

        return self._find_and_change(take.key, take.execute_at, reschedule)

    def remove(self, takes: Sequence[Take]) -> int:
        def build_change(take: Take, place: datetime) -> Change:
            return _build_removal(take.key, place, self._build_take(take))

        written = self._change_each([build_change(take, take.execute_at) for take in takes])
        missed = [take for take, is_written in zip(takes, written, strict=True) if not is_written]
        places = [(take, self._read_pointer(take.key)) for take in missed]
        moved = [build_change(take, place) for take, place in places if place not in (None, take.execute_at)]
        return sum(written) + sum(self._change_each(moved))

    def scan(
        self, namespace: QualifiedNamespace, num_shards: int, after: Position | None, limit: int
    ) -> TimerPage:
        """Return timers of a namespace. One that is moved meanwhile can be missing.

        The rows of a shard are in the order of their times, so each page reads all of them for those with the first ids.
        """
        first, after_id = decode_position(after) if after else (0, "")
        shards = range(first, min(first + MAX_SHARDS_IN_PAGE, num_shards))
        found: list[StoredTimer] = []
        # The first shard alone: mostly it fills the page.
        for batch in [shards[:1], *split_batches(shards[1:], MAX_SHARDS_AT_ONCE)]:
            floors_by_shard = zip(batch, self._read_floors(batch), strict=True)
            written = [(shard, floors) for shard, floors in floors_by_shard if floors.write is not None]
            statements = [
                build_select_all(
                    "shard_id, timer_id, timer_execute_at, timer_uuid",
                    shard,
                    RowType.TIMER,
                    OF_NAMESPACE,
                    floor=floors.read or EPOCH,
                    timer_namespace=str(namespace),
                    after_id=after_id if shard == first else "",
                )
                for shard, floors in written
            ]
            answers = self._client.read_each(statements, rows_in_fetch=SMALL_ROWS_IN_FETCH)
            for (shard, _), rows in zip(written, answers, strict=True):
                room = limit - len(found)
                chosen = heapq.nsmallest(room, rows, key=lambda row: str(row["timer_id"]))
                found += self._read_chosen(namespace, chosen)
                if len(chosen) == room:
                    return TimerPage(found, encode_position(shard, chosen[-1]["timer_id"]))
        return TimerPage(found, encode_position(shards.stop, "") if shards.stop < num_shards else None)

    def _read_chosen(self, namespace: QualifiedNamespace, chosen: Sequence[Row]) -> list[StoredTimer]:
        """Read timers by their keys. Those that have been moved since are looked for."""
        keys = [TimerKey(namespace, row["timer_id"], row["shard_id"]) for row in chosen]
        answers = self._client.read_each(
            [
                build_select(TIMER_COLUMNS, _build_timer_key(key, row["timer_execute_at"]))
                for key, row in zip(keys, chosen, strict=True)
            ]
        )
        timers = [
            read_timer_row(rows[0]) if rows else self.get(key)
            for key, rows in zip(keys, answers, strict=True)
        ]
        return [timer for timer in timers if timer is not None]

    # --- operators --------------------------------------------------------------------------------------------

    def count_timers(self, shards: Sequence[int], now: datetime) -> list[ShardBacklog]:
        def count(shard: int, floors: Floors) -> ShardBacklog:
            columns, floor = "timer_execute_at, timer_taken_until", floors.read or EPOCH
            statement = build_select_all(columns, shard, RowType.TIMER, FROM_FLOOR, floor=floor)
            (rows,) = self._client.read_each([statement], rows_in_fetch=SMALL_ROWS_IN_FETCH)
            overdue = sum(max(row["timer_execute_at"], row["timer_taken_until"]) <= now for row in rows)
            return ShardBacklog(shard, len(rows), overdue)

        return list(map(count, shards, self._read_floors(shards)))

    def measure_bytes(self) -> int | None:
        """Return None: each server knows the size of its own part only."""
        return None

    # --- rows -------------------------------------------------------------------------------------------------

    def _build_take(self, take: Take) -> dict[str, object]:
        """Return the columns by which this cell has a timer under this take."""
        return {
            "timer_revision": take.revision,
            "timer_takes": take.number,
            "timer_taken_by": self._cell,
        }

    def _read_pointer(self, key: TimerKey) -> datetime | None:
        """Return the time in the key of a timer's row."""
        statement = build_select("timer_row_at", _build_pointer_key(key))
        rows = self._client.read(statement, is_serial=True)
        place: datetime | None = rows[0]["timer_row_at"] if rows else None
        return place

    def _read_timer(self, key: TimerKey, place: datetime) -> StoredTimer | None:
        rows = self._client.read(build_select(TIMER_COLUMNS, _build_timer_key(key, place)), is_serial=True)
        return read_timer_row(rows[0]) if rows else None

    def _find_and_change(self, key: TimerKey, place: datetime, change: Callable[[datetime], T]) -> T:
        """Change the row of a timer where the caller has seen it, or else where its pointer says.

        A timer that is put with a time before the write floor gets another one, of which its caller does not know.
        """
        changed = change(place)
        if changed:
            return changed
        actual = self._read_pointer(key)
        return changed if actual in (None, place) else change(actual)

    def _change_each(self, changes: Sequence[Change]) -> list[bool]:
        """Make changes, many in one batch. Return which of them were made."""
        made = [False] * len(changes)
        # Batches about one shard would only wait for each other, so they are executed one after another.
        waiting: dict[object, list[list[int]]] = defaultdict(list)
        for number, change in enumerate(changes):
            batches = waiting[change.key["shard_id"]]
            if not batches or len(batches[-1]) == MAX_TIMERS_IN_BATCH:
                batches.append([])
            batches[-1].append(number)
        while waiting:
            tried = {shard: batches.pop(0) for shard, batches in waiting.items()}
            answers = self._client.write_each(
                [
                    [statement for number in batch for statement in changes[number].statements]
                    for batch in tried.values()
                ]
            )
            for (shard, batch), answer in zip(tried.items(), answers, strict=True):
                if answer[0][APPLIED]:
                    for number in batch:
                        made[number] = True
                elif len(batch) > 1:
                    waiting[shard] += _split_after_refusal(batch, changes, answer)
            waiting = defaultdict(list, {shard: batches for shard, batches in waiting.items() if batches})
        return made

    def _store(
        self, timer: StoredTimer, place: datetime | None, seen: Mapping[str, object]
    ) -> datetime | None:
        """Store a timer, in place of the one whose row is at `place`, if it is in the state that was seen, or of none.

        Return where it is now, which is later than its time if that is before the write floor, or None.
        """
        row = build_row(timer)
        new_place = timer.execute_at
        while True:
            key = _build_timer_key(timer.key, new_place)
            if new_place == place:
                changes = {name: value for name, value in row.items() if name not in KEY}
                return place if self._client.write(build_update(key, changes, seen)) else None
            statements = [
                build_floor_condition(timer.key.shard, new_place),
                build_update(
                    _build_pointer_key(timer.key), {"timer_row_at": new_place}, {"timer_row_at": place}
                ),
                build_insert({**row, **key}),
            ]
            if place is not None:
                statements.append(build_delete(_build_timer_key(timer.key, place), seen))
            if self._client.write(*statements):
                return new_place
            (floors,) = self._read_floors([timer.key.shard], is_serial=True)
            if floors.write is None:
                self._client.write(build_floor_update("shard_write_floor", timer.key.shard, EPOCH, None))
            elif floors.write <= new_place:
                return None
            else:
                new_place = floors.write

    # --- floors -----------------------------------------------------------------------------------------------

    def _read_floors(self, shards: Sequence[int], *, is_serial: bool = False) -> list[Floors]:
        answers = self._client.read_each(
            [build_select_floors(shard) for shard in shards], is_serial=is_serial
        )
        return [
            Floors(rows[0]["shard_write_floor"], rows[0]["shard_read_floor"], rows[0]["clock"])
            if rows
            else Floors()
            for rows in answers
        ]

    def _raise_floors(self, shard: int, seen: Floors, oldest: datetime) -> None:
        """Raise the floors of a shard towards its oldest timer, if that skips enough."""
        if seen.clock is None:
            return
        # Neither a wrong clock of the cell nor one of the server puts timers off.
        floor = min(oldest, seen.clock - FLOOR_DELAY)
        if floor < (seen.read or EPOCH) + FLOOR_STEP:
            return
        # It only saves work.
        with suppress(TimerStoreError):
            self._try_to_raise_floors(shard, seen, floor)

    def _try_to_raise_floors(self, shard: int, seen: Floors, floor: datetime) -> None:
        if seen.write is not None and seen.write >= floor:
            floor = seen.write  # whoever raised it has not come further
        elif not self._client.write(build_floor_update("shard_write_floor", shard, floor, seen.write)):
            return
        # From now on, no row is created before the floor. There may be some.
        condition = f"{FROM_FLOOR} LIMIT 1"
        statement = build_select_all(
            "timer_execute_at", shard, RowType.TIMER, condition, floor=seen.read or EPOCH
        )
        rows = self._client.read(statement, is_serial=True)
        read_floor = min([floor, *(row["timer_execute_at"] for row in rows)])
        if read_floor != seen.read:
            self._client.write(build_floor_update("shard_read_floor", shard, read_floor, seen.read))


def _read_shard(row: Mapping[str, Any]) -> ShardOwnership:
    if row["shard_version"] is None:  # it has floors, and no owner has ever claimed it
        return ShardOwnership(row["shard_id"], 0)
    return ShardOwnership(
        row["shard_id"],
        row["shard_version"],
        row["shard_owner_id"],
        row["shard_claimed_at"],
        row["shard_metadata"],
    )


def _build_member_key(member: Member) -> dict[str, object]:
    return build_key(RESERVED_SHARD, RowType.MEMBER, member.id)


def _build_namespace_key(namespace: QualifiedNamespace) -> dict[str, object]:
    return build_key(RESERVED_SHARD, RowType.NAMESPACE, compute_namespace_uuid(namespace))


def _build_pointer_key(key: TimerKey) -> dict[str, object]:
    return build_key(key.shard, RowType.POINTER, key.uuid)


def _select_due(shard: int, until: datetime, limit: int, condition: str, **bounds: object) -> Statement:
    return build_select_all(TIMER_COLUMNS, shard, RowType.TIMER, condition, until=until, rows=limit, **bounds)


def _build_timer_key(key: TimerKey, place: datetime) -> dict[str, object]:
    return build_key(key.shard, RowType.TIMER, key.uuid, place)


def _build_state(timer: StoredTimer) -> dict[str, object]:
    """Return the columns by which a timer is in the state in which it was read. Its time is in the key."""
    return {
        "timer_revision": timer.revision,
        "timer_takes": timer.takes,
        "timer_taken_until": timer.taken_until,
    }


def _build_removal(key: TimerKey, place: datetime, seen: Mapping[str, object]) -> Change:
    row_key = _build_timer_key(key, place)
    return Change(row_key, seen, [build_delete(row_key, seen), build_delete(_build_pointer_key(key), {})])


def _split_after_refusal(
    batch: Sequence[int], changes: Sequence[Change], answer: Sequence[Row]
) -> list[list[int]]:
    """Return the batches in which the rest is tried again: without the changes of rows that are in another state."""
    # A row that does not exist is not in the answer. If none exists, the answer is one row without a key.
    rows = {(row.get("timer_execute_at"), row.get("timer_uuid")): row for row in answer}

    def is_in_state(change: Change) -> bool:
        row = rows.get((change.key["timer_execute_at"], change.key["timer_uuid"]), {})
        return all(row.get(name) == value for name, value in change.seen.items())

    rest = [number for number in batch if is_in_state(changes[number])]
    if len(rest) == len(batch):  # it cannot be seen which one was refused
        return [[number] for number in batch]
    return [rest] if rest else []

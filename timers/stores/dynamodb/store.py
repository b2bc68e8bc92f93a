"""A timer store on DynamoDB, with conditional writes of single items, several at once, and consistent reads."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from eventservice.kernel.findings import Finding, Severity, check
from timers.stores.dynamodb.address import DynamoDbAddress
from timers.stores.dynamodb.client import ConditionFailed, DynamoDbClient, NoTable, Response
from timers.stores.dynamodb.items import (
    Item,
    build_item,
    build_key,
    build_member_key,
    build_namespace_key,
    build_shard_key,
    build_sort_key_prefix,
    build_timer_item,
    build_timer_key,
    build_timer_sort_key,
    encode_column,
    encode_time,
    is_sort_key_too_long,
    read_item,
    read_timer_item,
)
from timers.stores.dynamodb.table import (
    DUE_INDEX,
    build_definition,
    find_differences,
    measure_table_bytes,
)
from timers.stores.encoding import (
    build_declaration,
    decode_position,
    encode_position,
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
    round_up,
)
from timers.stores.rows import build_progress_columns
from timers.stores.store_spec import StoreSpec

MAX_KEYS_IN_BATCH = 100
# How many shards of a namespace one page of a list looks through, and how many of them at once.
MAX_SHARDS_IN_PAGE, MAX_SHARDS_AT_ONCE = 64, 8
MAX_CREATION_SECONDS = 120

IF_ABSENT = {"ConditionExpression": "attribute_not_exists(sortKey)"}
SHARD_CONDITION = "shard_id = :shard"
PREFIX_CONDITION = "shard_id = :shard AND begins_with(sortKey, :prefix)"
DUE_CONDITION = "shard_id = :shard AND timer_execute_at <= :until"
# In which both bounds are included.
DUE_SINCE_CONDITION = "shard_id = :shard AND timer_execute_at BETWEEN :since AND :until"
MILLISECOND = timedelta(milliseconds=1)

GIGABYTE = 2**30
# A partition with its part of the index cannot have more than 10 GB.
MAX_PARTITION_GIGABYTES, WARNING_GIGABYTES = 10, 8


def build_store(spec: StoreSpec, cell: str) -> DynamoDbTimerStore:
    """Build the store of a URL, without connecting. Raise ValueError if the URL names no region and table."""
    return DynamoDbTimerStore(spec.name, DynamoDbAddress.parse(spec.parts), cell)


class DynamoDbTimerStore:
    def __init__(self, name: str, address: DynamoDbAddress, cell: str) -> None:
        self.name = name
        self._address = address
        self._cell = cell
        self._client = DynamoDbClient(name, address)

    # --- schema -----------------------------------------------------------------------------------------------

    def migrate(self) -> None:
        if self._describe_table() is None:
            with suppress(ConditionFailed):  # another process has created it meanwhile
                self._client.write("create_table", **build_definition(self._address.table))
        for _ in range(MAX_CREATION_SECONDS):
            description = self._describe_table()
            if description is not None and description["TableStatus"] == "ACTIVE":
                break
            time.sleep(1)
        else:
            raise StoreUnavailable(f"{self.name}: the table {self._address.table} is still being created")
        if differences := find_differences(description):
            raise TimerStoreError(f"{self.name}: {self._explain(differences)}")

    def check(self) -> list[Finding]:
        where = self._address.endpoint or f"DynamoDB in {self._address.region}"
        description = self._describe_table()
        server = check("timer_store_server", True, f"{self.name}: {where}")
        if description is None:
            text = f"{self.name}: there is no table {self._address.table}"
            remedy = f"Run `manage.py timer_store migrate {self.name}`."
            return [server, check("timer_store_table", False, text, remedy)]
        if differences := find_differences(description):
            text = f"{self.name}: {self._explain(differences)}"
            remedy = "Name another table in TIMER_STORES, and run `manage.py timer_store migrate` with it."
            return [server, check("timer_store_table", False, text, remedy)]
        table = check("timer_store_table", True, f"{self.name}: complete")
        return [server, table, self._check_partitions(description)]

    def _explain(self, differences: Sequence[str]) -> str:
        return f"the table {self._address.table} cannot be used: {'; '.join(differences)}"

    def _check_partitions(self, description: Response) -> Finding:
        """Look for partitions near their maximum size. In a small table there can be none."""
        code = "timer_store_partitions"
        size = measure_table_bytes(description)
        numbers = [declared.num_shards for declared in self.namespaces()]
        # Timers are distributed evenly among the shards of a namespace.
        if size < WARNING_GIGABYTES * GIGABYTE * min(numbers, default=1):
            return check(code, True, f"{self.name}: {size:,} bytes in all partitions")
        shards = range(max(numbers, default=1))
        estimates = self._client.run_all([partial(self._estimate_gigabytes, shard) for shard in shards])
        sizes = dict(zip(shards, estimates, strict=True))
        full = [str(shard) for shard, one in sizes.items() if one is not None and one >= WARNING_GIGABYTES]
        unknown = [str(shard) for shard, one in sizes.items() if one is None]
        if not full and not unknown:
            return check(code, True, f"{self.name}: no partition has {WARNING_GIGABYTES} GB")
        if full:
            text = f"the partitions of the shards {', '.join(full)} have {WARNING_GIGABYTES} GB or more"
        else:
            text = f"the partitions of the shards {', '.join(unknown)}, which nobody has claimed, are of unknown size"
        return Finding(
            code,
            Severity.WARNING,
            f"{self.name}: {text}, and no partition can have more than {MAX_PARTITION_GIGABYTES} GB.",
            "Create new timers in a namespace with more shards. A full partition accepts no timers until others have ended.",
        )

    def _estimate_gigabytes(self, shard: int) -> float | None:
        """Return DynamoDB's estimate of a partition's size, which only the answer to a write contains.

        The write changes nothing but the time of the ownership record's latest change. Without a record, return None.
        """
        try:
            response = self._client.write(
                "update_item",
                TableName=self._address.table,
                Key=build_shard_key(shard),
                ReturnItemCollectionMetrics="SIZE",
                **_build_update({}, self._read_time(), {"row_type": RowType.SHARD.name}),
            )
        except ConditionFailed:
            return None
        # The lower and the upper bound of the estimate. DynamoDB Local does not have them.
        bounds = response.get("ItemCollectionMetrics", {}).get("SizeEstimateRangeGB")
        return float(max(bounds)) if bounds else None

    def read_clock(self) -> datetime:
        key = build_shard_key(RESERVED_SHARD)
        return self._client.read_clock("get_item", TableName=self._address.table, Key=key)

    def close(self) -> None:
        self._client.close()

    # --- members and namespaces -------------------------------------------------------------------------------

    def members(self) -> list[Member]:
        rows = self._select_reserved(RowType.MEMBER)
        return [Member(row["timer_uuid"], row["shard_version"], row["shard_metadata"]) for row in rows]

    def beat(self, member: Member) -> bool:
        key = build_member_key(member)
        columns = {"row_type": RowType.MEMBER.name, "timer_uuid": member.id, "shard_version": 1}
        if member.beats == 1 and self._insert(key, {**columns, "shard_metadata": dict(member.metadata)}):
            return True
        return self._update(key, {"shard_version": member.beats}, {"row_type": RowType.MEMBER.name})

    def remove_member(self, member: Member) -> bool:
        return self._delete(build_member_key(member), {"shard_version": member.beats})

    def namespaces(self) -> list[NamespaceDeclaration]:
        return [_read_namespace(row) for row in self._select_reserved(RowType.NAMESPACE)]

    def declare_namespace(
        self, namespace: QualifiedNamespace, num_shards: int, fingerprint: Mapping[str, str]
    ) -> NamespaceDeclaration:
        columns = {
            "row_type": RowType.NAMESPACE.name,
            "timer_namespace": str(namespace),
            "shard_version": 1,
            "shard_metadata": build_declaration(num_shards, fingerprint),
        }
        if self._insert(build_namespace_key(namespace), columns):
            return NamespaceDeclaration(namespace, num_shards, dict(fingerprint), 1)
        return next(declared for declared in self.namespaces() if declared.namespace == namespace)

    def change_fingerprint(self, seen: NamespaceDeclaration, fingerprint: Mapping[str, str]) -> bool:
        metadata = build_declaration(seen.num_shards, fingerprint)
        changes = {"shard_version": seen.version + 1, "shard_metadata": metadata}
        return self._update(build_namespace_key(seen.namespace), changes, {"shard_version": seen.version})

    # --- shards -----------------------------------------------------------------------------------------------

    def shards(self, shards: Sequence[int]) -> list[ShardOwnership]:
        found = {
            row["shard_id"]: ShardOwnership(
                row["shard_id"],
                row["shard_version"],
                row["shard_owner_id"],
                row["shard_claimed_at"],
                row["shard_metadata"],
            )
            for row in map(
                read_item, self._get_all([build_shard_key(shard) for shard in dict.fromkeys(shards)])
            )
        }
        return [found.get(shard, ShardOwnership(shard, 0)) for shard in shards]

    def claim(self, seen: ShardOwnership, owner: str, metadata: Mapping[str, str]) -> Claim | None:
        key = build_shard_key(seen.shard)
        columns = {
            "shard_version": seen.version + 1,
            "shard_owner_id": owner,
            "shard_claimed_at": self._read_time(),
            "shard_metadata": dict(metadata),
        }
        if seen.version == 0:
            won = self._insert(key, {"row_type": RowType.SHARD.name, **columns})
        else:
            won = self._update(key, columns, {"shard_version": seen.version})
        return Claim(seen.shard, seen.version + 1) if won else None

    def release(self, claims: Sequence[Claim]) -> None:
        def release(claim: Claim) -> bool:
            key, seen = build_shard_key(claim.shard), {"shard_version": claim.version}
            return self._update(key, {"shard_owner_id": None}, seen)

        self._client.run_all([partial(release, claim) for claim in claims])

    # --- timers -----------------------------------------------------------------------------------------------

    def put(self, timer: StoredTimer, replaces: StoredTimer | None, now: datetime) -> None:
        item = build_timer_item(timer, self._read_time())
        if replaces is None:
            written = self._write("put_item", Item=item, **IF_ABSENT)
        else:
            written = not replaces.is_taken(now) and (
                self._write("put_item", Item=item, **_build_condition(_build_state(replaces)))
            )
        if written:
            return
        stored = self.get(timer.key)
        if stored is None or stored.revision != timer.revision:
            raise TimerConflict(stored)

    def get(self, key: TimerKey) -> StoredTimer | None:
        if is_sort_key_too_long(key):
            return None  # instead of DynamoDB's error
        response = self._client.read(
            "get_item", TableName=self._address.table, Key=build_timer_key(key), ConsistentRead=True
        )
        return read_timer_item(response["Item"]) if "Item" in response else None

    def delete(self, timer: StoredTimer, now: datetime) -> bool:
        return not timer.is_taken(now) and self._delete(build_timer_key(timer.key), _build_state(timer))

    def move(self, timer: StoredTimer, now: datetime, execute_at: datetime) -> StoredTimer | None:
        moved = timer.build_moved(execute_at)
        changes = {
            "timer_execute_at": moved.execute_at,
            "timer_takes": moved.takes,
            "timer_taken_until": moved.taken_until,
            "timer_taken_by": moved.taken_by,
        }
        is_moved = not timer.is_taken(now) and (
            self._update(build_timer_key(timer.key), changes, _build_state(timer))
        )
        return moved if is_moved else None

    def due(
        self, shard: int, now: datetime, until: datetime, after: Position | datetime | None, limit: int
    ) -> TimerPage:
        condition, first = DUE_CONDITION, ""
        values: dict[str, object] = {":shard": shard, ":until": until}
        start: dict[str, object] = {}
        if isinstance(after, datetime):
            condition, first = DUE_SINCE_CONDITION, encode_time(after + MILLISECOND)
            values[":since"] = after + MILLISECOND
        elif after:
            first, sort_key = decode_position(after)
            key = build_item({"timer_execute_at": datetime.fromisoformat(first)})
            start = {"ExclusiveStartKey": build_key(shard, sort_key) | key}
        if first > encode_time(until):  # which DynamoDB would refuse
            return TimerPage([], None)
        response = self._query(
            condition,
            values,
            IndexName=DUE_INDEX,
            # The items themselves, which are read from the table.
            Select="ALL_ATTRIBUTES",
            Limit=limit,
            **start,
        )
        # An item can have changed since its entry in the index was read.
        found = [
            timer
            for timer in map(read_timer_item, response["Items"])
            if timer.execute_at <= until and (timer.taken_until <= now or timer.taken_by == self._cell)
        ]
        last = response.get("LastEvaluatedKey")
        return TimerPage(
            found, encode_position(last["timer_execute_at"]["S"], last["sortKey"]["S"]) if last else None
        )

    def first_due(
        self, shards: Sequence[int], now: datetime, until: datetime, limit: int, *, own: bool
    ) -> list[TimerPage]:
        reads = [partial(self.due, shard, now, until, None, limit) for shard in shards]
        pages = self._client.run_all(reads)
        return pages if own else [page.leave_out_taken(now) for page in pages]

    def take(self, timers: Sequence[StoredTimer], now: datetime, until: datetime) -> list[StoredTimer]:
        def take(timer: StoredTimer) -> StoredTimer | None:
            taken = replace(timer, takes=timer.takes + 1, taken_until=round_up(until), taken_by=self._cell)
            changes = {
                "timer_takes": taken.takes,
                "timer_taken_until": taken.taken_until,
                "timer_taken_by": taken.taken_by,
                "timer_reserve": None,
            }
            won = self._update(build_timer_key(timer.key), changes, _build_state(timer))
            return taken if won else None

        tried = [partial(take, timer) for timer in timers if not timer.is_taken(now)]
        return [taken for taken in self._client.run_all(tried) if taken]

    def postpone(self, timer: StoredTimer, now: datetime, until: datetime) -> bool:
        changes = {"timer_taken_until": round_up(until), "timer_taken_by": None}
        return not timer.is_taken(now) and (
            self._update(build_timer_key(timer.key), changes, _build_state(timer))
        )

    def reschedule(self, attempts: Sequence[NextAttempt]) -> int:
        return sum(self._client.run_all([partial(self._reschedule, one) for one in attempts]))

    def _reschedule(self, attempt: NextAttempt) -> bool:
        changes = {
            "timer_execute_at": round_up(attempt.execute_at),
            "timer_taken_until": EPOCH,
            "timer_taken_by": None,
            **({} if attempt.progress is None else build_progress_columns(attempt.progress)),
        }
        return self._update(build_timer_key(attempt.take.key), changes, self._build_take(attempt.take))

    def remove(self, takes: Sequence[Take]) -> int:
        def remove(take: Take) -> bool:
            return self._delete(build_timer_key(take.key), self._build_take(take))

        return sum(self._client.run_all([partial(remove, take) for take in takes]))

    def scan(
        self, namespace: QualifiedNamespace, num_shards: int, after: Position | None, limit: int
    ) -> TimerPage:
        first, after_id = decode_position(after) if after else (0, "")
        shards = range(first, min(first + MAX_SHARDS_IN_PAGE, num_shards))
        found: list[StoredTimer] = []
        # The first shard alone: mostly it fills the page.
        for batch in [shards[:1], *split_batches(shards[1:], MAX_SHARDS_AT_ONCE)]:
            queries = [
                partial(self._scan_shard, shard, namespace, after_id if shard == first else "", limit)
                for shard in batch
            ]
            for response in self._client.run_all(queries):
                items = response["Items"]
                fitting = items[: limit - len(found)]
                found += map(read_timer_item, fitting)
                if len(fitting) < len(items) or "LastEvaluatedKey" in response:
                    return TimerPage(found, encode_position(found[-1].key.shard, found[-1].key.timer_id))
        return TimerPage(found, encode_position(shards.stop, "") if shards.stop < num_shards else None)

    def _scan_shard(self, shard: int, namespace: QualifiedNamespace, after_id: str, limit: int) -> Response:
        start: dict[str, object] = {}
        if after_id:
            start = {"ExclusiveStartKey": build_key(shard, build_timer_sort_key(namespace, after_id))}
        values = {":shard": shard, ":prefix": build_sort_key_prefix(RowType.TIMER, namespace)}
        return self._query(PREFIX_CONDITION, values, Limit=limit, **start)

    # --- operators --------------------------------------------------------------------------------------------

    def count_timers(self, shards: Sequence[int], now: datetime) -> list[ShardBacklog]:
        def count(shard: int) -> ShardBacklog:
            # Only timers are in the index.
            everything = self._query_all(
                SHARD_CONDITION, {":shard": shard}, IndexName=DUE_INDEX, Select="COUNT"
            )
            due = self._query_all(
                DUE_CONDITION,
                {":shard": shard, ":until": now},
                IndexName=DUE_INDEX,
                ProjectionExpression="timer_taken_until",
            )
            ends = [item["timer_taken_until"]["S"] for page in due for item in page["Items"]]
            overdue = sum(end <= encode_time(now) for end in ends)
            return ShardBacklog(shard, sum(page["Count"] for page in everything), overdue)

        return self._client.run_all([partial(count, shard) for shard in shards])

    def measure_bytes(self) -> int | None:
        description = self._describe_table()
        return None if description is None else measure_table_bytes(description)

    # --- requests ---------------------------------------------------------------------------------------------

    def _build_take(self, take: Take) -> dict[str, object]:
        """Return the columns by which this cell has a timer under this take."""
        return {
            "timer_execute_at": take.execute_at,
            "timer_revision": take.revision,
            "timer_takes": take.number,
            "timer_taken_by": self._cell,
        }

    def _describe_table(self) -> Response | None:
        try:
            response = self._client.read("describe_table", TableName=self._address.table)
        except NoTable:
            return None
        description: Response = response["Table"]
        return description

    def _query(self, condition: str, values: Mapping[str, object], **parameters: object) -> Response:
        return self._client.read(
            "query",
            TableName=self._address.table,
            KeyConditionExpression=condition,
            ExpressionAttributeValues={name: encode_column(name, value) for name, value in values.items()},
            ConsistentRead=True,
            **parameters,
        )

    def _query_all(
        self, condition: str, values: Mapping[str, object], **parameters: object
    ) -> Iterator[Response]:
        page = self._query(condition, values, **parameters)
        yield page
        while "LastEvaluatedKey" in page:
            page = self._query(condition, values, ExclusiveStartKey=page["LastEvaluatedKey"], **parameters)
            yield page

    def _select_reserved(self, row_type: RowType) -> list[dict[str, Any]]:
        values = {":shard": RESERVED_SHARD, ":prefix": build_sort_key_prefix(row_type)}
        return [
            read_item(item) for page in self._query_all(PREFIX_CONDITION, values) for item in page["Items"]
        ]

    def _get_all(self, keys: Sequence[Item]) -> list[Item]:
        """Return the items that exist. DynamoDB answers a part of the keys if it is busy."""
        found: list[Item] = []
        for batch in split_batches(keys, MAX_KEYS_IN_BATCH):
            found += self._client.read_items(self._address.table, batch)
        return found

    def _insert(self, key: Item, columns: Mapping[str, object]) -> bool:
        """Store an item. Return False, and change nothing, if its key exists."""
        item = build_item({**columns, "updated_at": self._read_time()}) | key
        return self._write("put_item", Item=item, **IF_ABSENT)

    def _update(self, key: Item, changes: Mapping[str, object], seen: Mapping[str, object]) -> bool:
        """Change the columns of an item if others have the values that were seen."""
        return self._write("update_item", Key=key, **_build_update(changes, self._read_time(), seen))

    def _delete(self, key: Item, seen: Mapping[str, object]) -> bool:
        return self._write("delete_item", Key=key, **_build_condition(seen))

    def _write(self, operation: str, **parameters: object) -> bool:
        """Send a write. Return False if the item is in another state than the write names."""
        try:
            self._client.write(operation, TableName=self._address.table, **parameters)
        except ConditionFailed:
            return False
        return True

    def _read_time(self) -> datetime:
        """Return the time of the server, for the columns that only inform."""
        return self._client.estimate_time() or self.read_clock()


def _read_namespace(row: Mapping[str, Any]) -> NamespaceDeclaration:
    return read_declaration(row["timer_namespace"], row["shard_version"], row["shard_metadata"])


def _build_state(timer: StoredTimer) -> dict[str, object]:
    """Return the columns by which a timer is in the state in which it was read."""
    return {
        "timer_execute_at": timer.execute_at,
        "timer_revision": timer.revision,
        "timer_takes": timer.takes,
        "timer_taken_until": timer.taken_until,
    }


def _build_condition(seen: Mapping[str, object]) -> dict[str, Any]:
    """Return the parameters of a write that requires an item with these values."""
    return {
        "ConditionExpression": " AND ".join(f"{name} = :seen_{name}" for name in seen),
        "ExpressionAttributeValues": {
            f":seen_{name}": encode_column(name, value) for name, value in seen.items()
        },
    }


def _build_update(
    changes: Mapping[str, object], updated_at: datetime, seen: Mapping[str, object]
) -> dict[str, Any]:
    """Return the parameters of an update. A column that becomes None is removed."""
    values = build_item({**changes, "updated_at": updated_at})
    expression = "SET " + ", ".join(f"{name} = :{name}" for name in values)
    if removed := [name for name in changes if name not in values]:
        expression += " REMOVE " + ", ".join(removed)
    parameters = _build_condition(seen)
    parameters["ExpressionAttributeValues"] |= {f":{name}": value for name, value in values.items()}
    return {**parameters, "UpdateExpression": expression}

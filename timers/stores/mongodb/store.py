"""A timer store on MongoDB, with conditional writes of single documents. It needs no transactions."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from bson.errors import BSONError
from pymongo import ASCENDING, DeleteOne, MongoClient, UpdateOne, WriteConcern
from pymongo.collection import Collection
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    DuplicateKeyError,
    ExecutionTimeout,
    InvalidURI,
    PyMongoError,
    ServerSelectionTimeoutError,
    WriteConcernError,
)
from pymongo.read_concern import ReadConcern
from pymongo.uri_parser import parse_uri

from eventservice.kernel.findings import Finding, check
from eventservice.kernel.ids import new_id
from timers.stores.encoding import (
    build_declaration,
    build_due_position,
    decode_position,
    encode_position,
    parse_due_position,
    read_declaration,
    split_batches,
)
from timers.stores.mongodb.documents import (
    Document,
    build_timer_document,
    read_timer_document,
)
from timers.stores.port import (
    EPOCH,
    NIL_UUID,
    NO_NAMESPACE,
    NO_TIMER_ID,
    RESERVED_SHARD,
    Claim,
    Member,
    NamespaceDeclaration,
    NextAttempt,
    OutcomeUnknown,
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
    TimerRefused,
    TimerStoreError,
    TimerTooLarge,
    compute_namespace_uuid,
    round_up,
)
from timers.stores.rows import build_progress_columns
from timers.stores.store_spec import StoreSpec

T = TypeVar("T")

CONNECT_SECONDS, ANSWER_SECONDS = 3, 8
# A document has at most 16 MiB, and the other members of a timer have far less than one.
MAX_TIMER_BYTES = 15 * 2**20
MAX_DOCUMENTS, MAX_SHARDS_IN_QUERY, MAX_SHARDS_IN_PAGE = 500, 500, 256

COLLECTION = "timers"
DUE_INDEX = ["shard_id", "row_type", "timer_execute_at", "timer_uuid"]
LOOKUP_INDEX = ["shard_id", "row_type", "timer_namespace", "timer_id"]
# The answer to `hello` of a router of a sharded cluster.
ROUTER = "isdbgrid"
SET_UPDATED_AT = {"$currentDate": {"updated_at": True}}


def build_store(spec: StoreSpec, cell: str) -> MongoTimerStore:
    """Build the store of a URL, without connecting. Raise ValueError if pymongo cannot read the URL."""
    try:
        if spec.scheme == "mongodb":  # the other one is looked up in DNS
            parse_uri(spec.url, warn=False)
    except (InvalidURI, ConfigurationError, ValueError):
        raise ValueError("the URL cannot be used by pymongo") from None
    return MongoTimerStore(spec, cell)


class MongoTimerStore:
    def __init__(self, spec: StoreSpec, cell: str) -> None:
        self.name = spec.name
        self._url = spec.url
        self._cell = cell
        self._lock = threading.Lock()
        self._client: MongoClient[Document] | None = None

    def _connect(self) -> Collection[Document]:
        """Return the collection. The client starts threads, so it is created in the process that uses it."""
        with self._lock:
            if self._client is None:
                self._client = MongoClient(
                    self._url,
                    serverSelectionTimeoutMS=1000 * CONNECT_SECONDS,
                    connectTimeoutMS=1000 * CONNECT_SECONDS,
                    socketTimeoutMS=1000 * ANSWER_SECONDS,
                    # Whoever uses the store repeats: what was written is recognized.
                    retryWrites=False,
                    retryReads=False,
                )
            client = self._client
        return client.get_default_database().get_collection(
            COLLECTION,
            codec_options=CodecOptions(
                tz_aware=True, tzinfo=UTC, uuid_representation=UuidRepresentation.STANDARD
            ),
            write_concern=WriteConcern(w="majority", j=True, wtimeout=1000 * ANSWER_SECONDS),
            read_concern=ReadConcern("majority"),
        )

    # --- schema -----------------------------------------------------------------------------------------------

    def migrate(self) -> None:
        def create(timers: Collection[Document]) -> None:
            client = timers.database.client
            if client.admin.command("hello").get("msg") == ROUTER:
                client.admin.command("enableSharding", timers.database.name)
                client.admin.command("shardCollection", timers.full_name, key={"shard_id": ASCENDING})
            timers.create_index([(name, ASCENDING) for name in DUE_INDEX])
            timers.create_index([(name, ASCENDING) for name in LOOKUP_INDEX], unique=True)

        self._write(create)

    def check(self) -> list[Finding]:
        version = self._read(lambda timers: timers.database.client.server_info()["version"])
        found = self._read(lambda timers: list(timers.index_information().values()))
        keys = {(tuple(name for name, _ in index["key"]), bool(index.get("unique"))) for index in found}
        missing = [
            f"no {'unique ' if unique else ''}index ({', '.join(names)})"
            for names, unique in ((DUE_INDEX, False), (LOOKUP_INDEX, True))
            if (tuple(names), unique) not in keys
        ]
        text = f"{self.name}: the collection {COLLECTION} has {', '.join(missing) or 'its indexes'}"
        remedy = f"Run `manage.py timer_store migrate {self.name}`."
        return [
            check("timer_store_server", True, f"{self.name}: MongoDB {version}"),
            check("timer_store_table", not missing, text, remedy),
        ]

    def read_clock(self) -> datetime:
        answer = self._read(lambda timers: timers.database.client.admin.command("hello"))
        moment: datetime = answer["localTime"]
        return moment.replace(tzinfo=UTC)

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    # --- members and namespaces -------------------------------------------------------------------------------

    def members(self) -> list[Member]:
        found = self._find({"shard_id": RESERVED_SHARD, "row_type": int(RowType.MEMBER)})
        return [Member(one["timer_uuid"], one["shard_version"], one["shard_metadata"]) for one in found]

    def beat(self, member: Member) -> bool:
        key = _build_member_key(member)
        if member.beats == 1:
            document = {**key, "shard_version": 1, "shard_metadata": dict(member.metadata)}
            if self._insert(document):
                return True
        return self._update(key, {"$set": {"shard_version": member.beats}})

    def remove_member(self, member: Member) -> bool:
        return self._delete({**_build_member_key(member), "shard_version": member.beats})

    def namespaces(self) -> list[NamespaceDeclaration]:
        found = self._find({"shard_id": RESERVED_SHARD, "row_type": int(RowType.NAMESPACE)})
        return [
            read_declaration(one["timer_namespace"], one["shard_version"], one["shard_metadata"])
            for one in found
        ]

    def declare_namespace(
        self, namespace: QualifiedNamespace, num_shards: int, fingerprint: Mapping[str, str]
    ) -> NamespaceDeclaration:
        metadata = build_declaration(num_shards, fingerprint)
        document = {**_build_namespace_key(namespace), "shard_version": 1, "shard_metadata": metadata}
        if self._insert(document):
            return NamespaceDeclaration(namespace, num_shards, dict(fingerprint), 1)
        return next(declared for declared in self.namespaces() if declared.namespace == namespace)

    def change_fingerprint(self, seen: NamespaceDeclaration, fingerprint: Mapping[str, str]) -> bool:
        metadata = build_declaration(seen.num_shards, fingerprint)
        condition = {**_build_namespace_key(seen.namespace), "shard_version": seen.version}
        changes = {"shard_version": seen.version + 1, "shard_metadata": metadata}
        return self._update(condition, {"$set": changes})

    # --- shards -----------------------------------------------------------------------------------------------

    def shards(self, shards: Sequence[int]) -> list[ShardOwnership]:
        found: dict[int, ShardOwnership] = {}
        for batch in split_batches(shards, MAX_SHARDS_IN_QUERY):
            condition = {"shard_id": {"$in": list(batch)}, "row_type": int(RowType.SHARD)}
            for one in self._find(condition):
                found[one["shard_id"]] = ShardOwnership(
                    one["shard_id"],
                    one["shard_version"],
                    one["shard_owner_id"],
                    one["shard_claimed_at"],
                    one["shard_metadata"],
                )
        return [found.get(shard, ShardOwnership(shard, 0)) for shard in shards]

    def claim(self, seen: ShardOwnership, owner: str, metadata: Mapping[str, str]) -> Claim | None:
        key = _build_shard_key(seen.shard)
        if seen.version == 0:
            # Nobody can win without it, and whoever is second finds it.
            self._insert(
                {
                    **key,
                    "shard_version": 0,
                    "shard_owner_id": None,
                    "shard_claimed_at": None,
                    "shard_metadata": {},
                }
            )
        changes = {
            "$set": {
                "shard_version": seen.version + 1,
                "shard_owner_id": owner,
                "shard_metadata": dict(metadata),
            },
            "$currentDate": {"shard_claimed_at": True, "updated_at": True},
        }
        won = self._update({**key, "shard_version": seen.version}, changes)
        return Claim(seen.shard, seen.version + 1) if won else None

    def release(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            condition = {**_build_shard_key(claim.shard), "shard_version": claim.version}
            self._update(condition, {"$set": {"shard_owner_id": None}})

    # --- timers -----------------------------------------------------------------------------------------------

    def put(self, timer: StoredTimer, replaces: StoredTimer | None, now: datetime) -> None:
        document = build_timer_document(timer)
        size = len(document["timer_payload"].encode())
        if size > MAX_TIMER_BYTES:
            raise TimerTooLarge(f"payload: it has {size:,} bytes, and MongoDB accepts {MAX_TIMER_BYTES:,}")
        if replaces is None:
            written = self._insert(document)
        else:
            written = not replaces.is_taken(now) and self._update(_build_state(replaces), {"$set": document})
        if written:
            return
        stored = self.get(timer.key)
        if stored is None or stored.revision != timer.revision:
            raise TimerConflict(stored)

    def get(self, key: TimerKey) -> StoredTimer | None:
        condition = {
            "shard_id": key.shard,
            "row_type": int(RowType.TIMER),
            "timer_namespace": str(key.namespace),
            "timer_id": key.timer_id,
        }
        found = self._find(condition)
        return read_timer_document(found[0]) if found else None

    def delete(self, timer: StoredTimer, now: datetime) -> bool:
        return not timer.is_taken(now) and self._delete(_build_state(timer))

    def move(self, timer: StoredTimer, now: datetime, execute_at: datetime) -> StoredTimer | None:
        moved = timer.build_moved(execute_at)
        changes = {
            "timer_execute_at": moved.execute_at,
            "timer_takes": moved.takes,
            "timer_taken_until": moved.taken_until,
            "timer_taken_by": moved.taken_by,
            "timer_take_id": None,
        }
        is_moved = not timer.is_taken(now) and self._update(_build_state(timer), {"$set": changes})
        return moved if is_moved else None

    def due(
        self, shard: int, now: datetime, until: datetime, after: Position | datetime | None, limit: int
    ) -> TimerPage:
        return self._read_due(shard, now, until, after, limit, self._cell)

    def _read_due(
        self,
        shard: int,
        now: datetime,
        until: datetime,
        after: Position | datetime | None,
        limit: int,
        cell: str | None,
    ) -> TimerPage:
        free: Document = {"timer_taken_until": {"$lte": now}}
        conditions = [free if cell is None else {"$or": [free, {"timer_taken_by": cell}]}]
        bounds: Document = {"$lte": until}
        if after:
            execute_at, timer_uuid = parse_due_position(after)
            # The first condition follows from the second, and bounds the range of the index.
            bounds["$gte"] = execute_at
            conditions.append(_build_later("timer_execute_at", execute_at, "timer_uuid", timer_uuid))
        condition = {
            "shard_id": shard,
            "row_type": int(RowType.TIMER),
            "timer_execute_at": bounds,
            "$and": conditions,
        }
        documents = self._find(condition, ["timer_execute_at", "timer_uuid"], limit)
        found = [read_timer_document(one) for one in documents]
        return TimerPage(found, build_due_position(found[-1]) if len(found) == limit else None)

    def first_due(
        self, shards: Sequence[int], now: datetime, until: datetime, limit: int, *, own: bool
    ) -> list[TimerPage]:
        cell = self._cell if own else None
        return [self._read_due(shard, now, until, None, limit, cell) for shard in shards]

    def take(self, timers: Sequence[StoredTimer], now: datetime, until: datetime) -> list[StoredTimer]:
        until = round_up(until)
        won: list[StoredTimer] = []
        for batch in split_batches([timer for timer in timers if not timer.is_taken(now)], MAX_DOCUMENTS):
            take_id = new_id()
            members = {
                "timer_taken_until": until,
                "timer_taken_by": self._cell,
                "timer_take_id": take_id,
            }
            changes = {"$inc": {"timer_takes": 1}, "$set": members, **SET_UPDATED_AT}
            updates = [UpdateOne(_build_state(timer), changes) for timer in batch]
            count = self._write_in_bulk(updates).matched_count
            taken = {timer.key.uuid for timer in batch}
            if 0 < count < len(batch):
                shards = sorted({timer.key.shard for timer in batch})
                condition = {
                    "shard_id": {"$in": shards},
                    "row_type": int(RowType.TIMER),
                    "timer_execute_at": {"$in": sorted({timer.execute_at for timer in batch})},
                    "timer_take_id": take_id,
                }
                taken = {one["timer_uuid"] for one in self._find(condition)}
            if count:
                won += [timer for timer in batch if timer.key.uuid in taken]
        return [
            replace(timer, takes=timer.takes + 1, taken_until=until, taken_by=self._cell) for timer in won
        ]

    def postpone(self, timer: StoredTimer, now: datetime, until: datetime) -> bool:
        changes = {"timer_taken_until": round_up(until), "timer_taken_by": None}
        return not timer.is_taken(now) and self._update(_build_state(timer), {"$set": changes})

    def reschedule(self, attempts: Sequence[NextAttempt]) -> int:
        batches = split_batches([self._build_rescheduling(one) for one in attempts], MAX_DOCUMENTS)
        return sum(int(self._write_in_bulk(batch).matched_count) for batch in batches)

    def _build_rescheduling(self, attempt: NextAttempt) -> UpdateOne:
        changes = {
            "timer_execute_at": round_up(attempt.execute_at),
            "timer_taken_until": EPOCH,
            "timer_taken_by": None,
            "timer_take_id": None,
            **({} if attempt.progress is None else build_progress_columns(attempt.progress)),
        }
        return UpdateOne(self._build_take(attempt.take), {"$set": changes, **SET_UPDATED_AT})

    def remove(self, takes: Sequence[Take]) -> int:
        batches = split_batches([DeleteOne(self._build_take(take)) for take in takes], MAX_DOCUMENTS)
        return sum(int(self._write_in_bulk(batch).deleted_count) for batch in batches)

    def scan(
        self, namespace: QualifiedNamespace, num_shards: int, after: Position | None, limit: int
    ) -> TimerPage:
        first, after_id = decode_position(after) if after else (0, None)
        shards = range(first, min(first + MAX_SHARDS_IN_PAGE, num_shards))
        if not shards:
            return TimerPage([], None)
        condition: Document = {
            "shard_id": {"$in": list(shards)},
            "row_type": int(RowType.TIMER),
            "timer_namespace": str(namespace),
        }
        if after_id is not None:
            condition |= _build_later("shard_id", first, "timer_id", after_id)
        documents = self._find(condition, ["shard_id", "timer_id"], limit)
        found = [read_timer_document(one) for one in documents]
        if len(found) == limit:
            return TimerPage(found, encode_position(found[-1].key.shard, found[-1].key.timer_id))
        return TimerPage(found, encode_position(shards.stop, "") if shards.stop < num_shards else None)

    # --- operators --------------------------------------------------------------------------------------------

    def count_timers(self, shards: Sequence[int], now: datetime) -> list[ShardBacklog]:
        is_overdue = {"$and": [{"$lte": ["$timer_execute_at", now]}, {"$lte": ["$timer_taken_until", now]}]}
        found: dict[int, ShardBacklog] = {}
        for batch in split_batches(shards, MAX_SHARDS_IN_QUERY):
            pipeline: list[Document] = [
                {"$match": {"shard_id": {"$in": list(batch)}, "row_type": int(RowType.TIMER)}},
                {
                    "$group": {
                        "_id": "$shard_id",
                        "pending": {"$sum": 1},
                        "overdue": {"$sum": {"$cond": [is_overdue, 1, 0]}},
                    }
                },
            ]
            for one in self._read(lambda timers: list(timers.aggregate(pipeline))):  # noqa: B023
                found[one["_id"]] = ShardBacklog(one["_id"], one["pending"], one["overdue"])
        return [found.get(shard, ShardBacklog(shard, 0, 0)) for shard in shards]

    def measure_bytes(self) -> int | None:
        found = self._read(lambda timers: timers.database.command("collStats", COLLECTION))
        return int(found.get("storageSize", 0)) + int(found.get("totalIndexSize", 0))

    # --- operations -------------------------------------------------------------------------------------------

    def _build_take(self, take: Take) -> Document:
        """Return the condition that this cell has a timer under this take."""
        return {
            "shard_id": take.key.shard,
            "row_type": int(RowType.TIMER),
            "timer_execute_at": take.execute_at,
            "timer_uuid": take.key.uuid,
            "timer_revision": take.revision,
            "timer_takes": take.number,
            "timer_taken_by": self._cell,
        }

    def _find(self, condition: Document, order: Sequence[str] = (), limit: int = 0) -> list[Document]:
        def find(timers: Collection[Document]) -> list[Document]:
            cursor = timers.find(condition, limit=limit)
            return list(cursor.sort([(name, ASCENDING) for name in order]) if order else cursor)

        return self._read(find)

    def _insert(self, document: Document) -> bool:
        """Insert a document. Return False if its key exists."""
        try:
            self._write(lambda timers: timers.insert_one({**document}))
        except _DocumentExists:
            return False
        return True

    def _update(self, condition: Document, changes: Document) -> bool:
        update = {**SET_UPDATED_AT, **changes}
        return self._write(lambda timers: timers.update_one(condition, update)).matched_count == 1

    def _delete(self, condition: Document) -> bool:
        return self._write(lambda timers: timers.delete_one(condition)).deleted_count == 1

    def _write_in_bulk(self, writes: Sequence[Any]) -> Any:
        return self._write(lambda timers: timers.bulk_write(list(writes), ordered=False))

    def _read(self, function: Callable[[Collection[Document]], T]) -> T:
        return self._run(function, StoreUnavailable)

    def _write(self, function: Callable[[Collection[Document]], T]) -> T:
        return self._run(function, OutcomeUnknown)

    def _run(self, function: Callable[[Collection[Document]], T], if_lost: type[TimerStoreError]) -> T:
        try:
            return function(self._connect())
        except DuplicateKeyError as error:
            raise _DocumentExists from error
        except DocumentTooLarge as error:
            raise TimerTooLarge(f"{self.name}: the timer is larger than a document may be") from error
        except (BSONError, OverflowError) as error:
            raise TimerRefused(f"{self.name}: {error}") from error
        except ServerSelectionTimeoutError as error:
            raise StoreUnavailable(f"{self.name}: no server can be reached") from error
        except (ConnectionFailure, ExecutionTimeout, WriteConcernError) as error:
            raise if_lost(f"{self.name}: {_get_first_line(error)}") from error
        except PyMongoError as error:
            raise StoreUnavailable(f"{self.name}: {_get_first_line(error)}") from error


class _DocumentExists(Exception):
    """A document with this key exists already."""


def _get_first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _build_state(timer: StoredTimer) -> Document:
    """Return the condition that a timer is in the state in which it was read."""
    return {
        "shard_id": timer.key.shard,
        "row_type": int(RowType.TIMER),
        "timer_execute_at": timer.execute_at,
        "timer_uuid": timer.key.uuid,
        "timer_revision": timer.revision,
        "timer_takes": timer.takes,
        "timer_taken_until": timer.taken_until,
    }


def _build_later(first: str, first_value: object, second: str, second_value: object) -> Document:
    """Return the condition that a document comes after these values in the order of two members."""
    return {"$or": [{first: {"$gt": first_value}}, {first: first_value, second: {"$gt": second_value}}]}


def _build_other_key(
    shard: int, row_type: RowType, row_uuid: uuid.UUID, namespace: str, row_id: str
) -> Document:
    """Return the members that identify a document which is no timer. The indexes contain all of them."""
    return {
        "shard_id": shard,
        "row_type": int(row_type),
        "timer_execute_at": EPOCH,
        "timer_uuid": row_uuid,
        "timer_namespace": namespace,
        "timer_id": row_id,
    }


def _build_shard_key(shard: int) -> Document:
    return _build_other_key(shard, RowType.SHARD, NIL_UUID, NO_NAMESPACE, NO_TIMER_ID)


def _build_member_key(member: Member) -> Document:
    return _build_other_key(RESERVED_SHARD, RowType.MEMBER, member.id, NO_NAMESPACE, str(member.id))


def _build_namespace_key(namespace: QualifiedNamespace) -> Document:
    row_uuid = compute_namespace_uuid(namespace)
    return _build_other_key(RESERVED_SHARD, RowType.NAMESPACE, row_uuid, str(namespace), NO_TIMER_ID)

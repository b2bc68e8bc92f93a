"""Servers of timer stores for the benchmark of them: each gets a table of its own, and is also written without the store.

`insert` fills tables with rows that nobody waits for. `take` and `remove` are the statements of a feeder, sent by the client
library alone, in batches and in parallel: what a store can reach at most on the same server.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar
from urllib.parse import SplitResult, urlsplit

from benchmarks.command_line import find_service_url
from benchmarks.processes import BenchmarkError
from timers.stores.port import StoredTimer

T = TypeVar("T")

STORE = "bench"
CELL = "benchmark"
THREADS, BATCH_SIZE = 8, 500
# DynamoDB accepts so many items in one request. In Cassandra, a batch of the store has so many timers.
DYNAMODB_BATCH_SIZE, CASSANDRA_BATCH_SIZE, CASSANDRA_PARALLEL = 25, 50, 16
# DynamoDB Local accepts any credentials.
REGION, ACCESS_KEY, SECRET_KEY = "us-east-1", "test", "s3cret"


class StoreServer(Protocol):
    """A server with a new, empty table."""

    # In TIMER_STORES.
    url: str

    def insert(self, timers: Sequence[StoredTimer]) -> None: ...

    def take(self, timers: Sequence[StoredTimer], until: datetime) -> None:
        """Take timers that nobody has taken."""

    def remove(self, timers: Sequence[StoredTimer]) -> None:
        """Remove timers under their revisions."""

    def measure_bytes(self) -> int | None:
        """Return the size of the table with its indexes, or None where the server does not say."""

    def close(self) -> None:
        """Delete the table."""


def split(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def run_in_parallel(function: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
    with ThreadPoolExecutor(THREADS) as executor:
        return list(executor.map(function, items))


def require_all(writes: Sequence[Any], written: int) -> None:
    """Raise BenchmarkError unless every write has changed something: one that is refused is quicker."""
    if written != len(writes):
        raise BenchmarkError(f"{written} of {len(writes)} writes have changed something")


# --- SQL ----------------------------------------------------------------------------------------------------------


class SqlServer:
    """PostgreSQL, MySQL or MariaDB, with a database of its own."""

    def __init__(self, server: SplitResult, scheme: str) -> None:
        from sqlalchemy import bindparam, create_engine, insert, make_url

        from timers.stores.sql.databases import DATABASES
        from timers.stores.sql.tables import timers

        self._database = DATABASES[scheme]
        self._name = f"eventservice_bench_{secrets.token_hex(4)}"
        server_url = make_url(server.geturl()).set(drivername=self._database.driver)
        self._server = create_engine(server_url, isolation_level="AUTOCOMMIT")
        self._execute(f"CREATE DATABASE {self._name}")
        self.url = server._replace(scheme=scheme, path=f"/{self._name}").geturl()
        self._engine = create_engine(server_url.set(database=self._name), pool_size=THREADS)
        c = timers.c
        is_timer = (
            (c.shard_id == bindparam("shard"))
            & (c.row_type == bindparam("type"))
            & (c.timer_execute_at == bindparam("at"))
            & (c.timer_uuid == bindparam("uuid"))
            & (c.timer_revision == bindparam("revision"))
        )
        self._insert = insert(timers)
        changes = {"timer_takes": 1, "timer_taken_by": CELL, "timer_taken_until": bindparam("until")}
        self._take = timers.update().where(is_timer, c.timer_takes == 0).values(changes)
        self._remove = timers.delete().where(is_timer)

    def insert(self, timers: Sequence[StoredTimer]) -> None:
        from timers.stores.rows import build_timer_row

        self._execute_many(self._insert, map(build_timer_row, timers))

    def take(self, timers: Sequence[StoredTimer], until: datetime) -> None:
        rows = [{**_identify(timer), "until": until} for timer in timers]
        require_all(timers, self._execute_many(self._take, rows))

    def remove(self, timers: Sequence[StoredTimer]) -> None:
        require_all(timers, self._execute_many(self._remove, map(_identify, timers)))

    def measure_bytes(self) -> int | None:
        from sqlalchemy import text

        with self._engine.connect() as connection:
            if self._database.name != "PostgreSQL":
                if self._database.name == "MySQL":  # it keeps sizes for a day
                    connection.execute(text("SET SESSION information_schema_stats_expiry = 0"))
                connection.execute(text("ANALYZE TABLE timers"))
            return int(connection.execute(text(self._database.size_query)).scalar_one())

    def close(self) -> None:
        self._engine.dispose()
        force = " WITH (FORCE)" if self._database.name == "PostgreSQL" else ""
        self._execute(f"DROP DATABASE {self._name}{force}")
        self._server.dispose()

    def _execute_many(self, statement: Any, rows: Iterable[dict[str, Any]]) -> int:
        """Execute a statement once a row, and return how many rows it has changed."""

        def execute(batch: list[dict[str, Any]]) -> int:
            with self._engine.begin() as connection:
                return int(connection.execute(statement, batch).rowcount)

        return sum(run_in_parallel(execute, split(rows, BATCH_SIZE)))

    def _execute(self, statement: str) -> None:
        from sqlalchemy import text

        with self._server.connect() as connection:
            connection.execute(text(statement))


def _identify(timer: StoredTimer) -> dict[str, Any]:
    key = timer.key
    return {
        "shard": key.shard,
        "type": 2,
        "at": timer.execute_at,
        "uuid": key.uuid,
        "revision": timer.revision,
    }


# --- MongoDB ------------------------------------------------------------------------------------------------------


class MongoDbServer:
    """MongoDB, with a database of its own."""

    def __init__(self, server: SplitResult) -> None:
        from bson.binary import UuidRepresentation
        from bson.codec_options import CodecOptions
        from pymongo import MongoClient, WriteConcern

        from timers.stores.mongodb.store import COLLECTION

        self._name = f"eventservice_bench_{secrets.token_hex(4)}"
        self.url = server._replace(path=f"/{self._name}").geturl()
        self._client: Any = MongoClient(server.geturl())
        self._timers = self._client[self._name].get_collection(
            COLLECTION,
            codec_options=CodecOptions(tz_aware=True, uuid_representation=UuidRepresentation.STANDARD),
            write_concern=WriteConcern(w="majority", j=True),
        )

    def insert(self, timers: Sequence[StoredTimer]) -> None:
        from timers.stores.mongodb.documents import build_timer_document

        def insert(batch: list[StoredTimer]) -> None:
            self._timers.insert_many(list(map(build_timer_document, batch)), ordered=False)

        run_in_parallel(insert, split(timers, BATCH_SIZE))

    def take(self, timers: Sequence[StoredTimer], until: datetime) -> None:
        from pymongo import UpdateOne

        change = {
            "$inc": {"timer_takes": 1},
            "$set": {"timer_taken_by": CELL, "timer_taken_until": until},
        }
        updates = [UpdateOne({**self._identify(timer), "timer_takes": 0}, change) for timer in timers]
        require_all(timers, sum(result.modified_count for result in self._write(updates)))

    def remove(self, timers: Sequence[StoredTimer]) -> None:
        from pymongo import DeleteOne

        deletions = [DeleteOne(self._identify(timer)) for timer in timers]
        require_all(timers, sum(result.deleted_count for result in self._write(deletions)))

    def measure_bytes(self) -> int | None:
        found = self._client[self._name].command("collStats", self._timers.name)
        return int(found.get("storageSize", 0)) + int(found.get("totalIndexSize", 0))

    def close(self) -> None:
        self._client.drop_database(self._name)
        self._client.close()

    def _write(self, writes: Sequence[Any]) -> list[Any]:
        return run_in_parallel(partial(self._timers.bulk_write, ordered=False), split(writes, BATCH_SIZE))

    @staticmethod
    def _identify(timer: StoredTimer) -> dict[str, Any]:
        return {
            "shard_id": timer.key.shard,
            "row_type": 2,
            "timer_execute_at": timer.execute_at,
            "timer_uuid": timer.key.uuid,
            "timer_revision": timer.revision,
        }


# --- DynamoDB -----------------------------------------------------------------------------------------------------


class DynamoDbServer:
    """DynamoDB Local, with a table of its own."""

    def __init__(self, server: SplitResult) -> None:
        from boto3.session import Session
        from botocore.config import Config

        self._table = f"eventservice_bench_{secrets.token_hex(4)}"
        self.url = f"dynamodb://{ACCESS_KEY}:{SECRET_KEY}@{REGION}/{self._table}?endpoint={server.geturl()}"
        session = Session(aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY, region_name=REGION)
        self._client: Any = session.client(
            "dynamodb", endpoint_url=server.geturl(), config=Config(max_pool_connections=THREADS)
        )

    def insert(self, timers: Sequence[StoredTimer]) -> None:
        from timers.stores.dynamodb.items import build_timer_item

        updated_at = datetime.now(UTC)

        def insert(batch: list[StoredTimer]) -> None:
            requests = [{"PutRequest": {"Item": build_timer_item(timer, updated_at)}} for timer in batch]
            rest: dict[str, Any] = {self._table: requests}
            while rest:
                rest = self._client.batch_write_item(RequestItems=rest).get("UnprocessedItems", {})

        run_in_parallel(insert, split(timers, DYNAMODB_BATCH_SIZE))

    def take(self, timers: Sequence[StoredTimer], until: datetime) -> None:
        from timers.stores.dynamodb.items import build_timer_key, encode_column

        values = {":takes": {"N": "1"}, ":until": encode_column("until", until), ":cell": {"S": CELL}}

        def take(timer: StoredTimer) -> None:
            self._client.update_item(
                TableName=self._table,
                Key=build_timer_key(timer.key),
                UpdateExpression=(
                    "SET timer_takes = :takes, timer_taken_until = :until, timer_taken_by = :cell REMOVE timer_reserve"
                ),
                ConditionExpression="timer_revision = :revision AND timer_takes = :none",
                ExpressionAttributeValues={
                    **values,
                    ":revision": {"S": str(timer.revision)},
                    ":none": {"N": "0"},
                },
            )

        run_in_parallel(take, timers)

    def remove(self, timers: Sequence[StoredTimer]) -> None:
        from timers.stores.dynamodb.items import build_timer_key

        def remove(timer: StoredTimer) -> None:
            self._client.delete_item(
                TableName=self._table,
                Key=build_timer_key(timer.key),
                ConditionExpression="timer_revision = :revision",
                ExpressionAttributeValues={":revision": {"S": str(timer.revision)}},
            )

        run_in_parallel(remove, timers)

    def measure_bytes(self) -> int | None:
        from timers.stores.dynamodb.table import measure_table_bytes

        return measure_table_bytes(self._client.describe_table(TableName=self._table)["Table"])

    def close(self) -> None:
        with suppress(self._client.exceptions.ResourceNotFoundException):
            self._client.delete_table(TableName=self._table)
        self._client.close()


# --- Cassandra ----------------------------------------------------------------------------------------------------


class CassandraServer:
    """Cassandra, with a keyspace of its own.

    Rows are inserted by plain statements, which the store never mixes with its conditional ones: nobody else writes them.
    """

    def __init__(self, server: SplitResult) -> None:
        from cassandra.auth import PlainTextAuthProvider
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile

        self._keyspace = f"eventservice_bench_{secrets.token_hex(4)}"
        place = f"{server.username}:{server.password}@{server.hostname}:{server.port}"
        self.url = f"cassandra://{place}/{self._keyspace}?replication=1"
        self._cluster = Cluster(
            [server.hostname],
            port=server.port,
            protocol_version=4,
            auth_provider=PlainTextAuthProvider(server.username, server.password),
            execution_profiles={EXEC_PROFILE_DEFAULT: ExecutionProfile(request_timeout=60)},
        )
        self._session: Any = self._cluster.connect()
        self._prepared: dict[str, Any] = {}

    def insert(self, timers: Sequence[StoredTimer]) -> None:
        from timers.stores.cassandra.rows import build_row
        from timers.stores.cassandra.statements import build_insert, build_key
        from timers.stores.port import RowType

        for batch in split(timers, 100 * CASSANDRA_BATCH_SIZE):
            statements = []
            for timer in batch:
                pointer = build_key(timer.key.shard, RowType.POINTER, timer.key.uuid)
                statements.append(build_insert(build_row(timer)))
                statements.append(build_insert({**pointer, "timer_row_at": timer.execute_at}))
            self._execute_all(list(map(self._bind, statements)))

    def take(self, timers: Sequence[StoredTimer], until: datetime) -> None:
        from timers.stores.cassandra.statements import build_update

        changes = {"timer_takes": 1, "timer_taken_until": until, "timer_taken_by": CELL}

        def take(timer: StoredTimer) -> list[Any]:
            seen = {"timer_revision": timer.revision, "timer_takes": 0}
            return [build_update(self._build_key(timer), changes, seen)]

        self._execute_batches(timers, take)

    def remove(self, timers: Sequence[StoredTimer]) -> None:
        from timers.stores.cassandra.statements import build_delete, build_key
        from timers.stores.port import RowType

        def remove(timer: StoredTimer) -> list[Any]:
            pointer = build_key(timer.key.shard, RowType.POINTER, timer.key.uuid)
            return [
                build_delete(self._build_key(timer), {"timer_revision": timer.revision}),
                build_delete(pointer, {}),
            ]

        self._execute_batches(timers, remove)

    def measure_bytes(self) -> int | None:
        return None

    def close(self) -> None:
        self._session.execute(f"DROP KEYSPACE IF EXISTS {self._keyspace}", timeout=60)
        self._cluster.shutdown()

    def _execute_batches(
        self, timers: Sequence[StoredTimer], build: Callable[[StoredTimer], list[Any]]
    ) -> None:
        """Execute the statements of timers in conditional batches, each within the partition of one shard."""
        from cassandra.query import BatchStatement, BatchType

        by_shard: dict[int, list[StoredTimer]] = defaultdict(list)
        for timer in timers:
            by_shard[timer.key.shard].append(timer)
        batches = []
        for of_shard in by_shard.values():
            for part in split(of_shard, CASSANDRA_BATCH_SIZE):
                batch = BatchStatement(BatchType.UNLOGGED)
                for statement in (statement for timer in part for statement in build(timer)):
                    batch.add(self._bind(statement))
                batches.append(batch)
        answers = self._execute_all(batches)
        # The first column says whether the conditions of the batch were met.
        require_all(batches, sum(answer.result_or_exc.one()[0] for answer in answers))

    def _execute_all(self, statements: Sequence[Any]) -> Sequence[Any]:
        from cassandra.concurrent import execute_concurrent

        self._session.set_keyspace(self._keyspace)
        work = [(statement, None) for statement in statements]
        answers: Sequence[Any] = execute_concurrent(self._session, work, CASSANDRA_PARALLEL)
        return answers

    def _bind(self, statement: Any) -> Any:
        if statement.text not in self._prepared:
            self._session.set_keyspace(self._keyspace)
            self._prepared[statement.text] = self._session.prepare(statement.text)
        return self._prepared[statement.text].bind(dict(statement.values))

    @staticmethod
    def _build_key(timer: StoredTimer) -> dict[str, object]:
        from timers.stores.cassandra.statements import build_key
        from timers.stores.port import RowType

        return build_key(timer.key.shard, RowType.TIMER, timer.key.uuid, timer.execute_at)


# --- all ----------------------------------------------------------------------------------------------------------

# By the names of the servers in tools/services.
SERVERS: dict[str, Callable[[SplitResult], StoreServer]] = {
    "postgres": partial(SqlServer, scheme="postgresql+psycopg"),
    "mysql": partial(SqlServer, scheme="mysql+pymysql"),
    "mariadb": partial(SqlServer, scheme="mariadb+pymysql"),
    "mongodb": MongoDbServer,
    "dynamodb": DynamoDbServer,
    "cassandra": CassandraServer,
}


@contextmanager
def open_server(name: str, url: str | None = None) -> Iterator[StoreServer]:
    """Create a table on the server at the URL, or on the one that `make services` starts, and delete it on exit."""
    server = SERVERS[name](urlsplit(url or find_service_url(name)))
    try:
        yield server
    finally:
        server.close()

"""The timer store on Cassandra, for the contract suite: each run has a keyspace of its own."""

from __future__ import annotations

import uuid
from typing import Any

from tests.contracts.timer_stores.base import StoreUnderTest
from tests.services import require_library, require_service
from timers.stores.cassandra.rows import MAX_TIMER_BYTES
from timers.stores.cassandra.table import TABLE
from timers.stores.store_spec import StoreSpec


class CassandraStoreUnderTest(StoreUnderTest):
    too_many_bytes = MAX_TIMER_BYTES + 1

    def __init__(self) -> None:
        require_library("cassandra")
        from cassandra.auth import PlainTextAuthProvider
        from cassandra.cluster import Cluster

        self.server = require_service("cassandra")
        self.keyspace = f"timers_{uuid.uuid4().hex}"
        self._cluster = Cluster(
            [self.server.hostname],
            port=self.server.port,
            protocol_version=4,
            auth_provider=PlainTextAuthProvider(self.server.username, self.server.password),
        )
        self.session: Any = self._cluster.connect()
        super().__init__(self.build_spec())

    def build_spec(
        self,
        *,
        scheme: str = "cassandra",
        password: str | None = None,
        port: int | None = None,
        options: str = "replication=1",
    ) -> StoreSpec:
        """Return the item of `TIMER_STORES` for this keyspace, by another way to the server if one is given."""
        password = password or self.server.password
        place = f"{self.server.username}:{password}@{self.server.hostname}:{port or self.server.port}"
        return StoreSpec.parse(f"cassandra={scheme}://{place}/{self.keyspace}?{options}")

    def clear(self) -> None:
        """Delete the partitions one by one, which is faster than TRUNCATE. The floors are deleted with them."""
        table = f"{self.keyspace}.{TABLE}"
        for row in self.session.execute(f"SELECT DISTINCT shard_id FROM {table}"):
            self.session.execute(f"DELETE FROM {table} WHERE shard_id = %s", (row.shard_id,))

    def close(self) -> None:
        self.session.execute(f"DROP KEYSPACE IF EXISTS {self.keyspace}", timeout=60)
        self._cluster.shutdown()

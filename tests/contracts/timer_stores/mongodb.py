"""The timer store on MongoDB, for the contract suite: each run has a database of its own."""

from __future__ import annotations

import uuid

from pymongo import MongoClient

from tests.contracts.timer_stores.base import StoreUnderTest
from tests.services import require_library, require_service
from timers.stores.mongodb.store import COLLECTION, MAX_TIMER_BYTES
from timers.stores.store_spec import StoreSpec


class MongoStoreUnderTest(StoreUnderTest):
    too_many_bytes = MAX_TIMER_BYTES + 1

    def __init__(self) -> None:
        require_library("pymongo")
        server = require_service("mongodb")
        self._name = f"timers_{uuid.uuid4().hex}"
        self._client: MongoClient[dict[str, object]] = MongoClient(server.geturl())
        super().__init__(StoreSpec.parse(f"mongodb={server._replace(path='/' + self._name).geturl()}"))

    def clear(self) -> None:
        self._client[self._name][COLLECTION].delete_many({})

    def close(self) -> None:
        self._client.drop_database(self._name)
        self._client.close()

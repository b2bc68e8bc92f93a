"""Timer stores in SQL databases, for the contract suite: each run has a database of its own."""

from __future__ import annotations

import uuid

from sqlalchemy import create_engine, make_url, text

from tests.contracts.timer_stores.base import StoreUnderTest
from tests.services import require_library, require_service
from timers.stores.sql.databases import DATABASES
from timers.stores.sql.tables import timers
from timers.stores.store_spec import StoreSpec


class SqlStoreUnderTest(StoreUnderTest):
    def __init__(self, service: str, scheme: str) -> None:
        require_library("sqlalchemy")
        server = require_service(service)
        self.database = DATABASES[scheme]
        self.too_many_bytes = self.database.max_row_bytes + 1
        self._name = f"timers_{uuid.uuid4().hex}"
        server_url = make_url(server.geturl()).set(drivername=self.database.driver)
        self._server = create_engine(server_url, isolation_level="AUTOCOMMIT")
        self._execute(f"CREATE DATABASE {self._name}")
        self.url = server_url.set(database=self._name)
        self.engine = create_engine(self.url, isolation_level="AUTOCOMMIT")
        place = server._replace(scheme=scheme, path=f"/{self._name}")
        super().__init__(StoreSpec.parse(f"{service}={place.geturl()}"))

    def clear(self) -> None:
        with self.engine.connect() as connection:
            connection.execute(timers.delete())

    def close(self) -> None:
        self.engine.dispose()
        self._execute(f"DROP DATABASE {self._name}")
        self._server.dispose()

    def _execute(self, statement: str) -> None:
        with self._server.connect() as connection:
            connection.execute(text(statement))

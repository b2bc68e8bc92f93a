"""Redis, for the contract suites."""

from __future__ import annotations

import json
from typing import Any

from tests.contracts.brokers.base import Broker


class RedisBroker(Broker):
    service = "redis"
    library = "redis"
    missing = "create=false"

    def create(self) -> None:
        import redis

        self.client = redis.Redis.from_url(self.url.geturl())

    def destroy(self) -> None:
        self.client.delete(self.name)
        self.client.close()

    def get_options(self) -> str:
        return f"stream={self.name}"

    def list_accepted(self) -> list[dict[str, Any]]:
        return [json.loads(fields[b"event"]) for _, fields in self.client.xrange(self.name)]

    def list_deduplication_ids(self) -> list[str]:
        return [fields[b"id"].decode() for _, fields in self.client.xrange(self.name)]

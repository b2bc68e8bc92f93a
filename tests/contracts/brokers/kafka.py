"""Kafka, for the contract suites."""

from __future__ import annotations

import json
from typing import Any

from tests.contracts.brokers.base import Broker
from tests.tcp_proxy import TcpProxy


class KafkaProxy(TcpProxy):
    """A proxy that replaces the server's address in what the server says: clients connect to the address of the metadata."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self._advertised = host.encode() + port.to_bytes(4, "big")
        self._replacement = host.encode() + self.port.to_bytes(4, "big")

    def _deliver(self, pair: Any, chunk: bytes, target: Any) -> bool:
        if target is pair.client:
            chunk = chunk.replace(self._advertised, self._replacement)
        return super()._deliver(pair, chunk, target)

    def count_connections(self) -> int:
        """Return how many there have been: the client ends by itself those that it does not need."""
        return len(self._pairs)


class KafkaBroker(Broker):
    service = "kafka"
    library = "confluent_kafka"
    missing = "create=false"
    proxy_class = KafkaProxy

    def build_options(self) -> dict[str, Any]:
        """Return the options of a client that does not use the proxy."""
        return {
            "bootstrap.servers": f"{self.url.hostname}:{self.url.port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": self.url.username,
            "sasl.password": self.url.password,
        }

    def create(self) -> None:
        self.taken: list[Any] = []
        self.consumer: Any = None

    def destroy(self) -> None:
        from confluent_kafka.admin import AdminClient

        if self.consumer is not None:
            self.consumer.close()
        admin = AdminClient(self.build_options())  # it must live until the answer
        for deleted in admin.delete_topics([self.name]).values():
            deleted.exception(timeout=30)

    def get_options(self) -> str:
        return f"topic={self.name}"

    def list_offsets(self, partitions: int) -> list[int]:
        """Return how many messages each partition has."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({**self.build_options(), "group.id": self.name})
        found = [
            consumer.get_watermark_offsets(TopicPartition(self.name, number), timeout=10)[1]
            for number in range(partitions)
        ]
        consumer.close()
        return found

    def list_messages(self) -> list[Any]:
        """Return the messages in the topic, which has one partition."""
        from confluent_kafka import Consumer, TopicPartition

        if self.consumer is None:
            self.consumer = Consumer({**self.build_options(), "group.id": self.name})
        if self.name not in self.consumer.list_topics(timeout=10).topics:
            return []
        partition = TopicPartition(self.name, 0, len(self.taken))
        end = self.consumer.get_watermark_offsets(partition, timeout=10)[1]
        self.consumer.assign([partition])
        while len(self.taken) < end:
            message = self.consumer.poll(10)
            if message is not None and message.error() is None:
                self.taken.append(message)
        self.consumer.unassign()
        return self.taken

    def list_accepted(self) -> list[dict[str, Any]]:
        return [json.loads(message.value()) for message in self.list_messages()]

    def list_deduplication_ids(self) -> list[str]:
        return [dict(message.headers())["id"].decode() for message in self.list_messages()]

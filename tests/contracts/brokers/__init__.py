"""Every broker, for the contract suites. A new one joins by one line in BROKERS."""

from __future__ import annotations

from tests.contracts.brokers.base import Broker
from tests.contracts.brokers.kafka import KafkaBroker
from tests.contracts.brokers.nats import NatsBroker
from tests.contracts.brokers.rabbitmq import RabbitMqBroker
from tests.contracts.brokers.redis import RedisBroker

# By the package in outbox.publishers.
BROKERS: dict[str, type[Broker]] = {
    "redis": RedisBroker,
    "rabbitmq": RabbitMqBroker,
    "nats": NatsBroker,
    "kafka": KafkaBroker,
}

__all__ = ["BROKERS", "Broker"]

"""Every publisher with its receiver, for the contract suite. A new publisher joins by one line in BUILDERS.

Those of brokers use the real server, behind a proxy that makes trouble (tests/contracts/brokers).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from outbox.models import WebhookDelivery
from outbox.publisher import Publisher
from outbox.publishers.log.publisher import LogPublisher
from outbox.publishers.webhook.endpoints import create_endpoint
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.contracts.brokers import BROKERS, Broker
from tests.orchestration.support import database_unavailable
from tests.tcp_proxy import Trouble


@dataclass(frozen=True)
class PublisherUnderTest:
    publisher: Publisher
    # The events that the receiver has accepted, as CloudEvents: those of an aggregate in the order of acceptance.
    list_accepted: Callable[[], list[dict[str, Any]]]
    # While it is entered, the receiver accepts nothing.
    outage: Callable[[], AbstractContextManager[None]]
    close: Callable[[], None] = lambda: None


def build_log_publisher(tenant_ids: Sequence[UUID]) -> PublisherUnderTest:
    stream = Stream()
    return PublisherUnderTest(LogPublisher(stream=stream), stream.list_events, stream.outage)


class Stream(io.StringIO):
    is_broken = False

    def write(self, text: str) -> int:
        if self.is_broken:
            raise BrokenPipeError("nobody reads the log")
        return super().write(text)

    def list_events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]

    @contextmanager
    def outage(self) -> Iterator[None]:
        self.is_broken = True
        yield
        self.is_broken = False


def build_webhook_publisher(tenant_ids: Sequence[UUID]) -> PublisherUnderTest:
    """Its receiver is the table of deliveries: once a delivery is written, it is sent and retried independently."""
    for tenant_id in tenant_ids:
        create_endpoint(tenant_id, "http://example.test/")
    return PublisherUnderTest(
        WebhookPublisher(), _list_deliveries, lambda: database_unavailable("INSERT INTO webhook_deliveries")
    )


def _list_deliveries() -> list[dict[str, Any]]:
    deliveries = WebhookDelivery.across_tenants.order_by("aggregate_id", "aggregate_seq")
    return [json.loads(delivery.body) for delivery in deliveries]


def build_broker_publisher(kind: type[Broker], tenant_ids: Sequence[UUID]) -> PublisherUnderTest:
    broker = kind()
    broker.tenant_ids = tenant_ids
    return PublisherUnderTest(
        broker.build(),
        broker.list_accepted,
        lambda: broker.proxy.make_trouble(Trouble.REFUSE, 0),
        broker.close,
    )


# By the package in outbox.publishers.
BUILDERS: dict[str, Callable[[Sequence[UUID]], PublisherUnderTest]] = {
    "log": build_log_publisher,
    "webhook": build_webhook_publisher,
    **{name: partial(build_broker_publisher, kind) for name, kind in BROKERS.items()},
}

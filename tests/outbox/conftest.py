"""Fixtures of the webhook tests: a receiver, endpoints at it, and a deliverer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from eventservice.runtime.dispatcher import EgressTransport
from execution.addresses import AddressPolicy
from execution.egress import Egress
from outbox.models import WebhookEndpoint
from outbox.publishers.webhook.deliverer import DeliveryResult, WebhookDeliverer
from outbox.publishers.webhook.endpoints import create_endpoint
from tests.outbox.receiver import Receiver, run_receiver
from tests.outbox.support import TENANT

Subscribe = Callable[..., WebhookEndpoint]
Deliver = Callable[[], DeliveryResult]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with run_receiver() as running:
        yield running


@pytest.fixture
def subscribe(receiver: Receiver) -> Subscribe:
    """Create an endpoint at a path of the receiver, which learns its secret."""

    def subscribe(
        path: str = "/hook", tenant_id: UUID = TENANT, event_types: tuple[str, ...] = ()
    ) -> WebhookEndpoint:
        endpoint, receiver.secrets[path] = create_endpoint(tenant_id, receiver.build_url(path), event_types)
        return endpoint

    return subscribe


@pytest.fixture
def allowed_hosts() -> dict[UUID, set[str]]:
    """The hosts to which tenants are restricted."""
    return {}


@pytest.fixture
def transport(allowed_hosts: dict[UUID, set[str]]) -> Iterator[EgressTransport]:
    transport = EgressTransport(start_egress, lambda tenant_id: allowed_hosts.get(tenant_id, ()))
    yield transport
    transport.close()


def start_egress() -> Egress:
    egress = Egress(AddressPolicy(allow=frozenset({"127.0.0.1:*"})))
    egress.start()
    return egress


@pytest.fixture
def deliver(transport: EgressTransport) -> Deliver:
    """Make passes until nothing is due or in flight. Return the sum of what they did."""
    deliverer = WebhookDeliverer(transport)

    def deliver_all() -> DeliveryResult:
        total = [0, 0, 0]
        while True:
            done = deliverer.deliver_once()
            total = [total[0] + done.delivered, total[1] + done.retried, total[2] + done.exhausted]
            if done.next_wait:
                return DeliveryResult(total[0], total[1], total[2], done.next_wait)

    return deliver_all

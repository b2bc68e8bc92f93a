"""The dispatcher's role with two brokers on real servers: trouble with one delays neither the other nor webhooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from eventservice.kernel.ids import new_id
from eventservice.runtime.dispatcher import DispatcherRole, EgressTransport
from outbox.broker_queue import BrokerQueue
from outbox.models import BrokerQueueEntry, WebhookDelivery
from outbox.publishers.webhook.endpoints import create_endpoint
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.contracts.brokers import BROKERS, Broker
from tests.contracts.test_brokers import list_accepted_ids
from tests.outbox.conftest import start_egress
from tests.outbox.support import TENANT, store_run
from tests.tcp_proxy import Trouble

pytestmark = pytest.mark.django_db(transaction=True)

LONG_SECONDS = 60.0


@pytest.fixture(params=BROKERS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Broker, Broker]]:
    troubled, healthy = BROKERS[request.param](), BROKERS[request.param]()
    yield troubled, healthy
    troubled.close()
    healthy.close()


def build_role(troubled: Broker, healthy: Broker) -> DispatcherRole:
    brokers = [troubled.build("timeout=0.5"), healthy.build()]
    brokers[0].name, brokers[1].name = "troubled", "healthy"
    return DispatcherRole(
        [WebhookPublisher(), BrokerQueue("troubled"), BrokerQueue("healthy")],
        EgressTransport(start_egress, lambda _tenant_id: ()),
        max_in_flight=8,
        brokers=brokers,
    )


def step_until(role: DispatcherRole, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        role.step(0.2)


@pytest.mark.parametrize(
    "trouble", [Trouble.REFUSE, Trouble.SWALLOW, Trouble.SLOW], ids=lambda trouble: trouble.value
)
def test_trouble_with_one_delays_no_other(pair: tuple[Broker, Broker], trouble: Trouble) -> None:
    troubled, healthy = pair
    create_endpoint(TENANT, "http://127.0.0.1:9/")
    role = build_role(troubled, healthy)
    aggregate = new_id()
    ids: list[str] = []
    try:
        with troubled.proxy.make_trouble(trouble, 0):
            for first in (1, 6, 11):
                ids += [str(event.event_id) for event in store_run(aggregate, 5, first)]
                step_until(role, lambda: list_accepted_ids(healthy) == ids)  # noqa: B023 - it is used at once
            assert WebhookDelivery.objects.for_tenant(TENANT).count() == 15
            if trouble is not Trouble.SLOW:
                assert troubled.list_accepted() == []
                assert BrokerQueueEntry.objects.filter(publisher="troubled").count() == 15
        step_until(role, lambda: not BrokerQueueEntry.objects.exists())
        assert list_accepted_ids(troubled) == ids
    finally:
        role.stop(5.0)

"""Fixtures of the outbox: calls with events, a receiver of webhooks, endpoints at it, and a deliverer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import UUID

import pytest

from eventservice.runtime.dispatcher import EgressTransport
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant
from execution.addresses import AddressPolicy
from execution.egress import Egress
from execution.outcome import Outcome
from orchestration import lifecycle
from orchestration.models import ServiceCall
from orchestration.retries import RetryPolicy
from orchestration.states import Delivery
from outbox.models import WebhookEndpoint
from outbox.publishers.webhook.deliverer import DeliveryResult, WebhookDeliverer
from outbox.publishers.webhook.endpoints import create_endpoint
from tests.factories import NOON
from tests.orchestration.support import ManualEngine, build_error, build_response, submit
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


@pytest.fixture
def finished_calls(manual_engine: ManualEngine) -> Tenant:
    """Return a tenant whose calls have ended in every way, with the events of all types."""
    tenant = create_tenant("acme")
    twice = RetryPolicy(max_attempts=2, initial_interval=0, max_interval=0)
    outcomes: dict[str, Outcome | None] = {
        "succeeds": build_response(), "fails": build_response(status=503), "breaks": build_error(), "is lost": None,
    }  # fmt: skip
    for name in outcomes:
        submit(tenant, name=name, delivery=Delivery.AT_MOST_ONCE)
        submit(tenant, name=name, retry_policy=twice)
    lifecycle.cancel(tenant.tenant_id, submit(tenant))
    lifecycle.delete(tenant.tenant_id, submit(tenant))
    moved = submit(tenant, due_at=NOON + timedelta(hours=1))
    lifecycle.reschedule(tenant.tenant_id, moved, NOON + timedelta(hours=2))
    canceled = [submit(tenant, name=name) for name in ("breaks", "fails")]
    names = dict(ServiceCall.objects.for_tenant(tenant.tenant_id).values_list("service_call_id", "name"))
    while started := manual_engine.start():
        if started[0].attempt == 1:
            for call in canceled:
                lifecycle.cancel(tenant.tenant_id, call)
        ended = [(call, outcomes[names[call.key.service_call_id]]) for call in started]
        manual_engine.finish(*((call, outcome) for call, outcome in ended if outcome))
        lifecycle.resolve_interrupted([call.key for call, outcome in ended if not outcome])
    return tenant

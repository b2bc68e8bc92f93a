"""Every function that reads or writes a tenant's table: it keeps tenants apart, and doing it twice is doing it once.

The table ADAPTERS lists them. Two tenants have the same rows with the same ids. That deletions cascade within a tenant, and
that keys and references stay inside it, is asserted for the tables themselves in test_data_model.py. Timers have a suite of
their own (tests/timers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, transaction

from eventservice.kernel.errors import Conflict, NotFound
from eventservice.operators.audit_log import list_actions_on, record_action, run_audited
from eventservice.operators.models import OperatorAction
from eventservice.tenants import directory, keys
from eventservice.tenants.models import ApiKey, Namespace
from execution import attempt_log
from execution.attempt_log import AttemptKey
from execution.models import HttpExecution
from orchestration import lifecycle
from orchestration.models import ServiceCall, ServiceCallTag
from orchestration.queries import call_lists, calls, counts, suggestions
from orchestration.queries.call_lists import CallFilter, Order
from orchestration.states import Status
from outbox import queries, retention, writer
from outbox.envelope import Envelope
from outbox.models import DeliveryState, OutboxEvent, WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook import delivery_queue, endpoints, recovery
from outbox.publishers.webhook.delivery_queue import WebhookResult
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.factories import (
    EARLIER,
    HttpExecutionFactory,
    OutboxEventFactory,
    ServiceCallFactory,
    ServiceCallTagFactory,
    TimerFactory,
)
from tests.orchestration.support import build_command, build_response
from tests.outbox.support import NOON, build_event
from timers.models import TimerSchedule

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

# The ids of both tenants' rows.
CALL, ENDED_CALL, ATTEMPT, EVENT, ENDPOINT, DELIVERY, NODE = (
    UUID(f"01900000-0000-7000-8000-{number:012x}") for number in range(1, 8)
)
NEW_CALL, NEW_EVENT = (
    UUID("01900000-0000-7000-8000-0000000000a1"),
    UUID("01900000-0000-7000-8000-0000000000a2"),
)

Function = Callable[[UUID], object]


@dataclass(frozen=True)
class Adapter:
    """The functions for a table. Each is called with the id of a tenant."""

    name: str
    create: Function
    # What a tenant sees of its own rows, and nobody else of them.
    reads: dict[str, Function]
    # What changes the rows of a tenant, and none of another. The second time it is refused, or changes nothing more.
    writes: dict[str, Function]
    # The tables that the writes change.
    models: Sequence[Any]


def create_calls(tenant_id: UUID) -> None:
    own: dict[str, Any] = {"tenant_id": tenant_id, "host": "a.test", "name": "report"}
    ServiceCallFactory(
        **own, service_call_id=CALL, external_id="order-1", idempotency_key="k", replay_of=ENDED_CALL,
        correlation_id=CALL,
    )  # fmt: skip
    ServiceCallFactory(**own, service_call_id=ENDED_CALL, status=Status.SUCCEEDED)
    ServiceCallTagFactory(tenant_id=tenant_id, service_call_id=CALL, tag="urgent")
    TimerFactory(tenant_id=tenant_id, service_call_id=CALL)


def submit(tenant_id: UUID, **given: Any) -> object:
    return lifecycle.submit([build_command(SimpleNamespace(tenant_id=tenant_id), **given)])


CALLS = Adapter(
    "service calls",
    create_calls,
    {
        "get_call": lambda tenant: calls.get_call(tenant, CALL),
        "get_status": lambda tenant: calls.get_status(tenant, CALL),
        "get_timer_call": lambda tenant: calls.get_timer_call(tenant, "default", "order-1"),
        "list_timer_calls": lambda tenant: calls.list_timer_calls(tenant, "default", "order-1", 9),
        "find_call_by_idempotency_key": lambda tenant: calls.find_call_by_idempotency_key(tenant, "k"),
        "list_replays": lambda tenant: calls.list_replays(tenant, ENDED_CALL, 9),
        "list_replayed": lambda tenant: calls.list_replayed([(tenant, ENDED_CALL)]),
        "list_statuses": lambda tenant: calls.list_statuses([(tenant, CALL)]),
        "list_summaries": lambda tenant: calls.list_summaries([(tenant, CALL)]),
        "count_pending": lambda tenant: calls.count_pending(tenant, 9),
        "list_calls": lambda tenant: call_lists.list_calls([CallFilter(tenant)], Order(), 9).calls,
        "list_calls by name": lambda tenant: (
            call_lists.list_calls([CallFilter(tenant, name_prefix="rep")], Order(), 9).calls
        ),
        "list_calls by correlation": lambda tenant: (
            call_lists.list_calls([CallFilter(tenant, correlation_id=CALL)], Order(), 9).calls
        ),
        "list_keys": lambda tenant: call_lists.list_keys([CallFilter(tenant)], Order(), 9),
        "count_calls": lambda tenant: counts.count_calls([CallFilter(tenant)]),
        "list_suggestions of names": lambda tenant: suggestions.list_suggestions([tenant], "name", "rep", 9),
    },
    {
        "submit": lambda tenant: submit(tenant, idempotency_key="new"),
        "submit with an id": lambda tenant: submit(tenant, service_call_id=NEW_CALL, id_was_given=True),
        "delete_timer": lambda tenant: lifecycle.delete_timer(tenant, "default", "order-1"),
        "cancel": lambda tenant: lifecycle.cancel(tenant, CALL),
        "edit": lambda tenant: lifecycle.edit(tenant, CALL, name="new", tags=["new"]),
        "replay": lambda tenant: lifecycle.replay(tenant, ENDED_CALL, NEW_EVENT, "once"),
        "delete": lambda tenant: lifecycle.delete(tenant, CALL),
    },
    (ServiceCall, ServiceCallTag, TimerSchedule, OutboxEvent),
)

TAGS = Adapter(
    "tags",
    create_calls,
    {
        "list_tags": lambda tenant: calls.list_tags(tenant, [CALL]),
        "list_calls by tag": lambda tenant: (
            call_lists.list_calls([CallFilter(tenant, tags=frozenset({"urgent"}))], Order(), 9).calls
        ),
        "list_suggestions of tags": lambda tenant: suggestions.list_suggestions([tenant], "tag", "u", 9),
    },
    {
        "add_tag": lambda tenant: lifecycle.add_tag(tenant, CALL, "new"),
        "remove_tag": lambda tenant: lifecycle.remove_tag(tenant, CALL, "urgent"),
    },
    (ServiceCallTag,),
)


def create_attempts(tenant_id: UUID) -> None:
    create_calls(tenant_id)
    HttpExecutionFactory(
        tenant_id=tenant_id, service_call_id=CALL, execution_id=ATTEMPT, node=NODE, request_body="body"
    )


def get_attempt_key(tenant_id: UUID) -> AttemptKey:
    return AttemptKey(tenant_id, CALL, ATTEMPT)


ATTEMPTS = Adapter(
    "attempt log",
    create_attempts,
    {
        "find_attempt": lambda tenant: attempt_log.find_attempt(tenant, CALL, ATTEMPT),
        "find_last_attempt": lambda tenant: attempt_log.find_last_attempt(tenant, CALL),
        "list_attempts_after": lambda tenant: attempt_log.list_attempts_after(tenant, CALL, 0, 9),
        "list_attempts_without_bodies": lambda tenant: attempt_log.list_attempts_without_bodies(tenant, CALL),
        "measure_attempts": attempt_log.measure_attempts,
        "filter_orphaned_attempts": lambda tenant: attempt_log.filter_orphaned_attempts(
            [get_attempt_key(tenant)], list
        ),
    },
    {
        "close_attempts": lambda tenant: attempt_log.close_attempts(
            [(get_attempt_key(tenant), build_response())], NOON
        ),
        "interrupt_attempts": lambda tenant: attempt_log.interrupt_attempts([get_attempt_key(tenant)], NOON),
        "assign_attempts": lambda tenant: attempt_log.assign_attempts([get_attempt_key(tenant)], CALL),
    },
    (HttpExecution,),
)


def create_events(tenant_id: UUID) -> None:
    own: dict[str, Any] = {"tenant_id": tenant_id, "aggregate_id": CALL}
    OutboxEventFactory(**own, event_id=EVENT, aggregate_seq=1, published_at=EARLIER)
    OutboxEventFactory(**own, event_id=NEW_CALL, aggregate_seq=2, causation_id=EVENT)


def append_next_event(tenant_id: UUID) -> None:
    writer.append_events([build_event(CALL, 3, tenant_id=tenant_id, event_id=NEW_EVENT)])


def find_cause_of_second(tenant_id: UUID) -> object:
    event = OutboxEvent(tenant_id=tenant_id, aggregate_id=CALL, causation_id=EVENT)
    return queries.find_cause(event)


EVENTS = Adapter(
    "outbox",
    create_events,
    {
        "list_aggregate_events": lambda tenant: queries.list_aggregate_events(tenant, CALL, 0, 9),
        "find_event_keys": lambda tenant: queries.find_event_keys(tenant, CALL, [EVENT]),
        "find_cause": find_cause_of_second,
        "find_aggregates_with_events": lambda tenant: writer.find_aggregates_with_events(tenant, [CALL]),
        "count_unpublished_by_aggregate": lambda tenant: queries.count_unpublished_by_aggregate(
            [OutboxEvent(tenant_id=tenant, aggregate_id=CALL)]
        ),
        "list_events": lambda tenant: (
            queries.list_events(queries.EventFilter(tenant_id=tenant), None, 9).events
        ),
    },
    {
        "append_events": append_next_event,
        "delete_published_events": lambda tenant: retention.delete_published_events(tenant, CALL),
    },
    (OutboxEvent,),
)


def create_deliveries(tenant_id: UUID) -> None:
    create_events(tenant_id)
    endpoints.create_endpoint(tenant_id, "https://hooks.test/", endpoint_id=ENDPOINT)
    WebhookDelivery.objects.create(
        tenant_id=tenant_id, delivery_id=DELIVERY, endpoint_id=ENDPOINT, event_id=EVENT, aggregate_id=CALL,
        aggregate_seq=1, body="{}", state=DeliveryState.EXHAUSTED, attempts=36, created_at=EARLIER, finished_at=NOON,
    )  # fmt: skip
    WebhookDelivery.objects.create(
        tenant_id=tenant_id, delivery_id=ATTEMPT, endpoint_id=ENDPOINT, event_id=ATTEMPT, aggregate_id=ATTEMPT,
        aggregate_seq=1, body="{}", attempts=9, last_error="status 500", created_at=EARLIER, next_attempt_at=NOON,
    )  # fmt: skip


def build_endpoint(tenant_id: UUID) -> WebhookEndpoint:
    return WebhookEndpoint(tenant_id=tenant_id, endpoint_id=ENDPOINT)


def count_deliveries(tenant_id: UUID) -> tuple[int, int]:
    queue = recovery.get_endpoint_queue(build_endpoint(tenant_id), 9)
    return queue.pending, queue.exhausted


def publish(tenant_id: UUID) -> None:
    event = Envelope(
        id=0, partition=0, attempts=0, event_id=NEW_EVENT, tenant_id=tenant_id,
        aggregate_type="ServiceCall", aggregate_id=CALL, sequence=2,
        type="ServiceCallScheduled", time=NOON, correlation_id=CALL, causation_id=None, data="{}",
    )  # fmt: skip
    WebhookPublisher().publish([event])


def record_success(tenant_id: UUID) -> None:
    delivery = WebhookDelivery(tenant_id=tenant_id, delivery_id=ATTEMPT, aggregate_id=ATTEMPT, attempts=9)
    delivery_queue.record_results(build_endpoint(tenant_id), [WebhookResult(delivery, 204)])


WEBHOOKS = Adapter(
    "webhooks",
    create_deliveries,
    {
        "find_endpoint": lambda tenant: endpoints.find_endpoint(tenant, ENDPOINT),
        "find_delivery": lambda tenant: recovery.find_delivery(build_endpoint(tenant), DELIVERY),
        "list_endpoint_deliveries": lambda tenant: recovery.list_endpoint_deliveries(
            build_endpoint(tenant), None, None, 9
        ),
        "list_endpoint_deliveries by state": lambda tenant: recovery.list_endpoint_deliveries(
            build_endpoint(tenant), DeliveryState.EXHAUSTED, None, 9
        ),
        "get_endpoint_queue": count_deliveries,
        "list_endpoint_queues": lambda tenant: recovery.list_endpoint_queues(tenant, 9, 9),
        "list_failing_endpoints": lambda tenant: recovery.list_failing_endpoints(tenant, 9, 9),
        "list_event_deliveries": lambda tenant: queries.list_event_deliveries(
            OutboxEvent(tenant_id=tenant, event_id=EVENT)
        ),
    },
    {
        "publish": publish,
        "update_endpoint": lambda tenant: endpoints.update_endpoint(tenant, ENDPOINT, url="https://b.test/"),
        "set_endpoint_active": lambda tenant: endpoints.set_endpoint_active(tenant, ENDPOINT, active=False),
        "retry_exhausted_deliveries": lambda tenant: recovery.retry_exhausted_deliveries(tenant, ENDPOINT, 9),
        "claim_deliveries": lambda tenant: delivery_queue.claim_deliveries(build_endpoint(tenant), 9),
        "postpone_deliveries": lambda tenant: delivery_queue.postpone_deliveries(
            build_endpoint(tenant), 9, "no key"
        ),
        "record_results": record_success,
        "delete_endpoint": lambda tenant: endpoints.delete_endpoint(tenant, ENDPOINT),
    },
    (WebhookEndpoint, WebhookDelivery),
)


def create_directory(tenant_id: UUID) -> None:
    directory.declare_namespace(tenant_id, "orders", 4)
    keys.create_key(tenant_id, ["read"], name="mine")


def revoke_own_keys(tenant_id: UUID) -> None:
    for key in keys.list_keys(tenant_id):
        keys.revoke_key(key.key_id)


def rotate_first_key(tenant_id: UUID) -> None:
    own = keys.list_keys(tenant_id)
    for key in own:
        if len(own) == 1 or key.successor_id:
            keys.rotate_key(key, keys.DEFAULT_OVERLAP)


DIRECTORY = Adapter(
    "namespaces and keys",
    create_directory,
    {
        "list_namespaces": directory.list_namespaces,
        "find_namespace": lambda tenant: directory.find_namespace(tenant, "orders"),
        "list_keys": keys.list_keys,
        "count_usable_keys": lambda tenant: keys.count_usable_keys([tenant]),
    },
    {
        "declare_namespace": lambda tenant: directory.declare_namespace(tenant, "new", 8),
        "declare_namespace that exists": lambda tenant: directory.declare_namespace(tenant, "orders", 4),
        "revoke_key": revoke_own_keys,
        "rotate_key": rotate_first_key,
    },
    (Namespace, ApiKey),
)

OPERATOR = SimpleNamespace(get_username=lambda: "operator")


def create_actions(tenant_id: UUID) -> None:
    create_calls(tenant_id)
    record_action(OPERATOR, "cancel", tenant_id=tenant_id, subject=tenant_id)


def add_audited_tag(tenant_id: UUID) -> None:
    def add() -> bool:
        return lifecycle.add_tag(tenant_id, CALL, "new")

    run_audited(OPERATOR, "tag", add, tenant_id=tenant_id, subject=CALL, changed=bool)


AUDIT_LOG = Adapter(
    "audit log",
    create_actions,
    {"list_actions_on": list_actions_on},
    {"run_audited": add_audited_tag},
    (OperatorAction, ServiceCallTag),
)

ADAPTERS = [CALLS, TAGS, ATTEMPTS, EVENTS, WEBHOOKS, DIRECTORY, AUDIT_LOG]
READS = [(adapter, name) for adapter in ADAPTERS for name in adapter.reads]
WRITES = [(adapter, name) for adapter in ADAPTERS for name in adapter.writes]


def describe(value: Any) -> str:
    return value.name if isinstance(value, Adapter) else str(value)


@pytest.fixture
def ours(db: None) -> UUID:
    return directory.create_tenant("ours").tenant_id


@pytest.fixture
def theirs(db: None) -> UUID:
    return directory.create_tenant("theirs").tenant_id


def run(function: Function, tenant_id: UUID) -> object:
    """Return what a function returns, or the kind of its refusal."""
    try:
        with transaction.atomic():
            return function(tenant_id)
    except (NotFound, Conflict, IntegrityError) as refusal:
        return type(refusal)


def read_rows(adapter: Adapter, tenant_id: UUID) -> list[list[dict[str, Any]]]:
    return [sorted(model.objects.for_tenant(tenant_id).values(), key=str) for model in adapter.models]


@pytest.mark.parametrize(("adapter", "name"), READS, ids=describe)
def test_a_read_shows_a_tenant_its_own_rows_only(
    adapter: Adapter, name: str, ours: UUID, theirs: UUID
) -> None:
    read = adapter.reads[name]
    nothing = run(read, ours)
    adapter.create(theirs)
    assert run(read, ours) == nothing
    assert run(read, theirs) != nothing


@pytest.mark.parametrize("has_rows", [True, False], ids=["with rows", "without rows"])
@pytest.mark.parametrize(("adapter", "name"), WRITES, ids=describe)
def test_a_write_changes_only_the_tenants_own_rows(
    adapter: Adapter, name: str, has_rows: bool, ours: UUID, theirs: UUID
) -> None:
    adapter.create(theirs)
    if has_rows:
        adapter.create(ours)
    before = read_rows(adapter, theirs)
    run(adapter.writes[name], ours)
    assert read_rows(adapter, theirs) == before


@pytest.mark.parametrize(("adapter", "name"), WRITES, ids=describe)
def test_a_write_that_is_repeated_changes_nothing_more(adapter: Adapter, name: str, ours: UUID) -> None:
    adapter.create(ours)
    before = read_rows(adapter, ours)
    run(adapter.writes[name], ours)
    after = read_rows(adapter, ours)
    assert (after == before) == (name == "declare_namespace that exists")
    run(adapter.writes[name], ours)
    assert read_rows(adapter, ours) == after

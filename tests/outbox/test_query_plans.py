"""The reads of the dispatcher and the deliverer use their indexes, however much has been published before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from eventservice.kernel.ids import new_id
from outbox.broker_queue import list_backlogs
from outbox.models import BrokerQueueEntry, OutboxEvent, WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook.delivery_queue import (
    GONE_REASON,
    claim_deliveries,
    give_up_gone_endpoint,
    has_pending_deliveries,
    list_due_endpoints,
)
from outbox.publishers.webhook.endpoints import create_endpoint
from outbox.publishers.webhook.publisher import WebhookPublisher
from outbox.publishers.webhook.recovery import list_endpoint_deliveries, list_failing_endpoints
from outbox.status import count_waiting_by_type
from outbox.store import list_nonempty_partitions, read_broker_queue, read_heads
from tests.explain import prepare_explain
from tests.factories import EARLIER, OutboxEventFactory
from tests.outbox.support import TENANT, build_dispatcher, drain, store_run

# With commits, because ANALYZE commits on MariaDB.
pytestmark = pytest.mark.django_db(transaction=True)

PUBLISHED = 5_000


@pytest.fixture
def _history() -> None:
    OutboxEvent.objects.bulk_create(
        (OutboxEventFactory.build(published_at=EARLIER, partition=n % 16) for n in range(PUBLISHED)),
        batch_size=500,
    )
    store_run(new_id(), 20)
    _analyze("outbox")


def _analyze(table: str) -> None:
    statement = {"sqlite": "ANALYZE", "postgresql": f"ANALYZE {table}"}.get(
        connection.vendor, f"ANALYZE TABLE {table}"
    )
    with connection.cursor() as cursor:
        cursor.execute(statement)


@contextmanager
def _capture_plans() -> Iterator[list[str]]:
    """Collect the plans of all SELECT statements in the block."""
    plans: list[str] = []
    with CaptureQueriesContext(connection) as queries:
        yield plans
    plans += [
        _explain(query["sql"])
        for query in queries.captured_queries
        if query["sql"].lstrip().startswith("SELECT")
    ]


def _explain(sql: str) -> str:
    explain = {"sqlite": "EXPLAIN QUERY PLAN", "postgresql": "EXPLAIN"}.get(
        connection.vendor, "EXPLAIN FORMAT=JSON"
    )
    with connection.cursor() as cursor:
        prepare_explain(cursor)
        cursor.execute(f"{explain} {sql}".replace("%", "%%"))
        plan = "\n".join(" ".join(map(str, row)) for row in cursor.fetchall())
        return plan.replace('"using_filesort": false', "")  # MySQL


@pytest.mark.usefixtures("_history")
def test_reading_what_is_unpublished() -> None:
    unpublished = OutboxEvent.across_tenants.get(published_at=None, aggregate_seq=1)
    with _capture_plans() as plans:
        list_nonempty_partitions(range(16))
        events, _ = read_heads(sorted({3, 4, unpublished.partition}), 30)
    assert len(events) == 20
    assert all("idx_outbox_unpublished" in plan for plan in plans)
    assert not any("SCAN e" in plan or "Seq Scan" in plan for plan in plans)


@pytest.mark.usefixtures("_history")
def test_reading_what_is_unpublished_with_statistics_of_a_large_backlog() -> None:
    OutboxEvent.across_tenants.update(published_at=None)
    _analyze("outbox")
    OutboxEvent.across_tenants.update(published_at=EARLIER)
    with _capture_plans() as plans:
        assert list_nonempty_partitions(range(16)) == []
        assert count_waiting_by_type(1000) == []
    assert len(plans) == 2
    assert all("idx_outbox_unpublished" in plan for plan in plans)


@pytest.mark.usefixtures("_history")
def test_reading_the_queue_of_a_broker() -> None:
    keys = list(OutboxEvent.across_tenants.order_by("id").values_list("id", "partition"))
    BrokerQueueEntry.objects.bulk_create(
        (
            BrokerQueueEntry(publisher=name, event_id=key, partition=partition)
            for name in ("first", "main", "other")
            for key, partition in keys
        ),
        batch_size=500,
    )
    _analyze("broker_queue")
    with _capture_plans() as plans:
        assert len(read_broker_queue("main", range(8), 100)) == 100
    assert "idx_broker_queue_partition" in plans[0]
    assert "SCAN broker_queue" not in plans[0]
    assert "Seq Scan on broker_queue" not in plans[0]
    with _capture_plans() as plans:
        backlogs = list_backlogs(9)
    assert [(backlog.publisher, backlog.count) for backlog in backlogs] == [
        ("first", 10),
        ("main", 10),
        ("other", 10),
    ]
    assert not any("SCAN q" in plan or "Seq Scan" in plan or "filesort" in plan for plan in plans), plans


@pytest.mark.usefixtures("at_noon")
def test_finding_due_deliveries() -> None:
    endpoint, _ = create_endpoint(TENANT, "http://example.test/")
    for _ in range(30):
        store_run(new_id(), 5)
    drain(build_dispatcher(WebhookPublisher()))
    _analyze("webhook_deliveries")
    with _capture_plans() as plans:
        assert has_pending_deliveries()
        assert len(list_due_endpoints()[0]) == 1
        assert len(claim_deliveries(endpoint, 10)[0]) == 10
    assert WebhookDelivery.objects.for_tenant(TENANT).filter(next_attempt_at=None).count() == 120
    assert "idx_webhook_deliveries_queue" in plans[0]
    assert "idx_webhook_deliveries_due" in "\n".join(plans[1:])


@pytest.mark.usefixtures("at_noon")
def test_listing_the_deliveries_of_an_endpoint() -> None:
    endpoint, _ = create_endpoint(TENANT, "http://example.test/")
    create_endpoint(TENANT, "http://other.test/")
    for _ in range(30):
        store_run(new_id(), 5)
    drain(build_dispatcher(WebhookPublisher()))
    _analyze("webhook_deliveries")
    with _capture_plans() as plans:
        page = list_endpoint_deliveries(endpoint, None, None, 10)
        list_endpoint_deliveries(endpoint, None, page.cursor, 10)
    walks = plans[::2]
    assert len(page.deliveries) == 10
    assert all("idx_webhook_deliveries_endpoint" in plan for plan in walks), walks
    assert not any("TEMP B-TREE" in plan or "Sort" in plan or "filesort" in plan for plan in walks), walks


@pytest.mark.usefixtures("at_noon")
def test_finding_endpoints_that_fail() -> None:
    endpoint, _ = create_endpoint(TENANT, "http://example.test/")
    create_endpoint(TENANT, "http://other.test/")
    for _ in range(200):
        store_run(new_id(), 2)
    drain(build_dispatcher(WebhookPublisher()))
    waiting = WebhookDelivery.objects.for_tenant(TENANT).filter(endpoint_id=endpoint.endpoint_id)
    waiting.exclude(next_attempt_at=None).update(attempts=2, last_error="HTTP 500")
    _analyze("webhook_deliveries")
    with _capture_plans() as plans:
        (failure,) = list_failing_endpoints(None, 5, 100)
    assert (failure.endpoint, failure.pending, failure.reason) == (endpoint, 101, "HTTP 500")
    # The last counts no more than it was told. Of a table as small as this one, PostgreSQL reads the beginning for it.
    # Those before it look for a delivery that was accepted among those that ended last.
    finding, sampling, *_ = plans
    assert "idx_webhook_deliveries_due" in finding
    assert "idx_webhook_deliveries_due" in sampling
    assert not any(word in sampling for word in ("TEMP B-TREE", "Sort", "filesort")), sampling


@pytest.mark.usefixtures("at_noon")
def test_giving_up_what_waits_for_an_endpoint_that_is_gone() -> None:
    endpoint, _ = create_endpoint(TENANT, "http://example.test/")
    # If the table had the deliveries of one endpoint only, reading all of it would be as good.
    create_endpoint(TENANT, "http://other.test/")
    for _ in range(30):
        store_run(new_id(), 5)
    drain(build_dispatcher(WebhookPublisher()))
    gone = WebhookEndpoint.objects.for_tenant(TENANT).filter(endpoint_id=endpoint.endpoint_id)
    gone.update(active=False, disabled_reason=GONE_REASON)
    _analyze("webhook_deliveries")
    with _capture_plans() as plans:
        assert give_up_gone_endpoint(10) == 10
    finding, _, _, reading, *_ = plans
    assert "idx_webhook_deliveries_queue" in finding
    assert "idx_webhook_deliveries_queue" in reading

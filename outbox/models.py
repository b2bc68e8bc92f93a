"""The events to publish, the ownership of their partitions, and webhook endpoints with their deliveries."""

from django.db import models
from django.db.models import Q

from eventservice.db.constraints import CompositeForeignKey, LongNamedIndex, PollingIndex
from eventservice.db.leases import Lease
from eventservice.kernel.tenancy import TenantScopedModel


class EventState(models.TextChoices):
    """The state of an event in the outbox, derived from its columns."""

    WAITING = "Waiting"
    RETRYING = "Retrying"
    PARKED = "Parked"
    HELD = "Held"
    PUBLISHED = "Published"
    SKIPPED = "Skipped"


# The unpublished states as conditions of queries. `OutboxEvent.state` derives the same from one event.
WAITING = Q(published_at__isnull=True, parked_at__isnull=True)  # or retrying
OUT_OF_QUEUE = Q(published_at__isnull=True, parked_at__isnull=False)
PARKED = OUT_OF_QUEUE & Q(attempts__gt=0)
HELD = OUT_OF_QUEUE & Q(attempts=0)


class AggregateType(models.TextChoices):
    """The kinds of aggregates. An event's `aggregate_id` is the id of one."""

    SERVICE_CALL = "ServiceCall"
    # A test event, which is sent to an endpoint without being stored here.
    WEBHOOK_TEST = "WebhookTest"


class OutboxEvent(TenantScopedModel):
    """An event, from the transaction of the change that it describes until retention deletes it."""

    # Increases with each event of an aggregate, whose row is locked while events are appended.
    id = models.BigAutoField(primary_key=True)
    tenant_id = models.UUIDField()
    aggregate_id = models.UUIDField()
    aggregate_type = models.CharField(
        max_length=32,
        choices=AggregateType.choices,
        default=AggregateType.SERVICE_CALL,
        db_default=AggregateType.SERVICE_CALL,
    )
    event_type = models.CharField(max_length=64)
    event_payload = models.JSONField()
    created_at = models.DateTimeField()
    published_at = models.DateTimeField(null=True)
    # The id by which receivers detect duplicates.
    event_id = models.UUIDField()
    aggregate_seq = models.PositiveIntegerField()
    correlation_id = models.UUIDField()
    causation_id = models.UUIDField(null=True)
    partition = models.PositiveSmallIntegerField()
    attempts = models.PositiveIntegerField(default=0)
    last_error = models.TextField(null=True)
    # Out of the queue until an operator decides: the parked event itself (attempts > 0), and the events held behind it.
    parked_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "outbox"
        constraints = [
            # Also read by the timeline of an aggregate.
            models.UniqueConstraint(
                name="uq_outbox_aggregate_seq", fields=["tenant_id", "aggregate_id", "aggregate_seq"]
            ),
            models.CheckConstraint(
                name="ck_outbox_aggregate_type", condition=Q(aggregate_type__in=AggregateType.values)
            ),
        ]
        indexes = [
            # The dispatcher: the unpublished events of a partition, in order, without parked ones.
            PollingIndex(
                name="idx_outbox_unpublished",
                fields=["partition", "id"],
                condition=WAITING,
                full=("published_at", "parked_at", "partition", "id"),
            ),
            # The dispatcher: whether an aggregate is parked. Operators: the list of parked events.
            PollingIndex(
                name="idx_outbox_parked",
                fields=["tenant_id", "aggregate_id"],
                condition=OUT_OF_QUEUE,
                full=("tenant_id", "aggregate_id", "parked_at"),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.event_type} {self.event_id}"

    @property
    def state(self) -> EventState:
        if self.published_at is not None:
            return EventState.PUBLISHED if self.parked_at is None else EventState.SKIPPED
        if self.parked_at is not None:
            return EventState.PARKED if self.attempts else EventState.HELD
        return EventState.RETRYING if self.attempts else EventState.WAITING


class OutboxPartition(Lease):
    """The ownership record of a partition. One owner at a time publishes the events of each aggregate in order."""

    # PARTITION is a reserved word in MariaDB.
    partition = models.PositiveSmallIntegerField(primary_key=True, db_column="partition_id")

    class Meta:
        db_table = "outbox_partitions"

    def __str__(self) -> str:
        return str(self.partition)


class BrokerQueueEntry(models.Model):
    """An event that waits for a broker, from when the dispatcher publishes it until the broker has accepted it."""

    pk = models.CompositePrimaryKey("publisher", "event_id")
    # The name in PUBLISHERS.
    publisher = models.CharField(max_length=32)
    # Its index also tells retention which events to keep.
    event = models.ForeignKey(OutboxEvent, on_delete=models.DO_NOTHING, related_name="+")
    partition = models.PositiveSmallIntegerField(db_column="partition_id")
    # Why the broker has not accepted this event and those behind it. Only the first of those that were sent has one.
    last_error = models.TextField(null=True)

    class Meta:
        db_table = "broker_queue"
        indexes = [
            models.Index(fields=["publisher", "partition", "event"], name="idx_broker_queue_partition")
        ]

    def __str__(self) -> str:
        return f"{self.publisher} {self.event_id}"


class WebhookEndpoint(TenantScopedModel):
    """A URL to which a tenant wants its events sent."""

    pk = models.CompositePrimaryKey("tenant_id", "endpoint_id")
    tenant_id = models.UUIDField()
    endpoint_id = models.UUIDField()
    url = models.TextField()
    # The signing secret (`whsec_…`), encrypted.
    secret = models.TextField()
    # Empty: all types.
    event_types = models.JSONField(default=list)
    active = models.BooleanField(default=True)
    disabled_reason = models.TextField(default="")
    created_at = models.DateTimeField()
    # When an attempt to deliver to it failed last. Null: never, or only under an earlier release.
    last_failed_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "webhook_endpoints"

    def __str__(self) -> str:
        return self.url


class DeliveryState(models.TextChoices):
    PENDING = "Pending"
    DELIVERED = "Delivered"
    EXHAUSTED = "Exhausted"


class WebhookDelivery(TenantScopedModel):
    """One event on its way to one endpoint. It carries its own body, so that the outbox can be pruned meanwhile."""

    pk = models.CompositePrimaryKey("tenant_id", "delivery_id")
    tenant_id = models.UUIDField()
    delivery_id = models.UUIDField()
    endpoint_id = models.UUIDField()
    event_id = models.UUIDField()
    aggregate_id = models.UUIDField()
    aggregate_seq = models.PositiveIntegerField()
    body = models.TextField()
    state = models.CharField(max_length=16, choices=DeliveryState.choices, default=DeliveryState.PENDING)
    attempts = models.PositiveIntegerField(default=0)
    # When it may be sent. While it is being sent, when its sender is declared dead.
    # Null: it waits behind an earlier event of its aggregate.
    next_attempt_at = models.DateTimeField(null=True)
    last_error = models.TextField(default="")
    # The response to the last attempt, if there was one. Only the beginning of the body of an unsuccessful one is kept.
    response_status = models.PositiveSmallIntegerField(null=True)
    response_body = models.TextField(null=True)
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    endpoint = models.ForeignObject(
        WebhookEndpoint,
        on_delete=models.DO_NOTHING,
        from_fields=("tenant_id", "endpoint_id"),
        to_fields=("tenant_id", "endpoint_id"),
        related_name="deliveries",
    )

    class Meta:
        db_table = "webhook_deliveries"
        verbose_name_plural = "webhook deliveries"
        constraints = [
            CompositeForeignKey(
                name="fk_webhook_deliveries_endpoint",
                fields=("tenant_id", "endpoint_id"),
                to="outbox.WebhookEndpoint",
                to_fields=("tenant_id", "endpoint_id"),
            ),
            # An event that is published again makes no second delivery.
            models.UniqueConstraint(
                name="uq_webhook_deliveries_event", fields=["tenant_id", "event_id", "endpoint_id"]
            ),
            models.CheckConstraint(
                name="ck_webhook_deliveries_state", condition=Q(state__in=DeliveryState.values)
            ),
            models.CheckConstraint(
                name="ck_webhook_deliveries_finished",
                condition=Q(state=DeliveryState.PENDING, finished_at__isnull=True)
                | (
                    ~Q(state=DeliveryState.PENDING)
                    & Q(finished_at__isnull=False, next_attempt_at__isnull=True)
                ),
            ),
        ]
        indexes = [
            # The deliverer: the due deliveries of an endpoint.
            PollingIndex(
                name="idx_webhook_deliveries_due",
                fields=["tenant_id", "endpoint_id", "next_attempt_at"],
                condition=Q(state=DeliveryState.PENDING),
                full=("tenant_id", "endpoint_id", "state", "next_attempt_at"),
            ),
            # The deliverer: the first delivery of an aggregate. The publisher: whether there is one.
            PollingIndex(
                name="idx_webhook_deliveries_queue",
                fields=["tenant_id", "endpoint_id", "aggregate_id", "aggregate_seq"],
                condition=Q(state=DeliveryState.PENDING),
                full=("tenant_id", "endpoint_id", "state", "aggregate_id", "aggregate_seq"),
            ),
            # The page of an endpoint, which lists its deliveries: their ids begin with the time. Without the tenant, since
            # MariaDB would prefer the primary key, and read the deliveries of all endpoints of the tenant.
            LongNamedIndex(name="idx_webhook_deliveries_endpoint", fields=["endpoint_id", "delivery_id"]),
            # Retention.
            PollingIndex(
                name="idx_webhook_deliveries_done",
                fields=["finished_at"],
                condition=Q(finished_at__isnull=False),
                full=("finished_at",),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.event_id} to {self.endpoint_id}: {self.state}"

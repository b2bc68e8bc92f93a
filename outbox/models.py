"""Events that have happened and are to be published."""

from django.db import models
from django.db.models import Q

from eventservice.kernel.constraints import PollingIndex
from eventservice.kernel.leases import Lease
from eventservice.kernel.tenancy import TenantManager


class OutboxEvent(models.Model):
    # Written in the order of the aggregate's events, because its row is locked while they are appended.
    id = models.BigAutoField(primary_key=True)
    tenant_id = models.UUIDField()
    aggregate_id = models.UUIDField()
    event_type = models.CharField(max_length=64)
    event_payload = models.JSONField()
    created_at = models.DateTimeField()
    published_at = models.DateTimeField(null=True)
    # The id by which every receiver recognises a repeat.
    event_id = models.UUIDField()
    aggregate_seq = models.PositiveIntegerField()
    correlation_id = models.UUIDField()
    causation_id = models.UUIDField(null=True)
    partition = models.PositiveSmallIntegerField()
    attempts = models.PositiveIntegerField(default=0)
    last_error = models.TextField(null=True)
    parked_at = models.DateTimeField(null=True)

    objects = TenantManager()

    class Meta:
        db_table = "outbox"
        constraints = [
            # Also the reader of an aggregate's timeline.
            models.UniqueConstraint(
                name="uq_outbox_aggregate_seq", fields=["tenant_id", "aggregate_id", "aggregate_seq"]
            )
        ]
        indexes = [
            # The dispatcher: what is still to publish, of a partition, in order.
            PollingIndex(
                name="idx_outbox_unpublished",
                fields=["partition", "id"],
                condition=Q(published_at__isnull=True),
                full=("published_at", "partition", "id"),
            )
        ]

    def __str__(self) -> str:
        return f"{self.event_type} {self.event_id}"


class OutboxPartition(Lease):
    """The ownership record of a partition: one owner at a time keeps the order of each aggregate's events."""

    partition = models.PositiveSmallIntegerField(primary_key=True)

    class Meta:
        db_table = "outbox_partitions"

    def __str__(self) -> str:
        return str(self.partition)

"""Timers, the shards they belong to, and the nodes that own the shards."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Self

from django.db import models
from django.db.models import Q

from eventservice.db.constraints import CompositeForeignKey, LongNamedIndex, PollingIndex
from eventservice.db.leases import CLOCK_MARGIN, Lease
from eventservice.db.now import DbNow
from eventservice.kernel.tenancy import TenantScopedModel
from eventservice.kernel.version import get_version


class TimerState(models.TextChoices):
    SCHEDULED = "Scheduled"
    REACHED = "Reached"


class TimerSchedule(TenantScopedModel):
    """The timer of one service call: when it is due, and whether it has been reached."""

    pk = models.CompositePrimaryKey("tenant_id", "service_call_id")
    tenant_id = models.UUIDField()
    service_call_id = models.UUIDField()
    correlation_id = models.UUIDField()
    due_at = models.DateTimeField()
    # When this due time was set. Each new one sets it again: a reschedule, a retry, an upsert. So for every attempt,
    # reached_at - registered_at is how long the timer was scheduled, and reached_at - due_at how late it was.
    registered_at = models.DateTimeField()
    reached_at = models.DateTimeField(null=True)
    state = models.CharField(
        max_length=16,
        choices=TimerState.choices,
        default=TimerState.SCHEDULED,
        db_default=TimerState.SCHEDULED,
    )
    shard_id = models.PositiveIntegerField()
    # The host of the call's URL, so that the poller can skip hosts that are at their in-flight limit.
    host = models.CharField(max_length=255, default="")
    # Roughly how much the engine reads when the timer is due: large requests come in smaller batches.
    request_bytes = models.PositiveIntegerField(default=0, db_default=0)
    # The version of the shard's lease under which the timer was reached.
    claim_version = models.BigIntegerField(null=True)
    service_call = models.ForeignObject(
        "orchestration.ServiceCall",
        on_delete=models.DO_NOTHING,
        from_fields=("tenant_id", "service_call_id"),
        to_fields=("tenant_id", "service_call_id"),
        related_name="+",  # timers are read through the port only
    )

    class Meta:
        db_table = "timer_schedules"
        constraints = [
            CompositeForeignKey(
                name="fk_timer_schedules_call",
                fields=("tenant_id", "service_call_id"),
                to="orchestration.ServiceCall",
                to_fields=("tenant_id", "service_call_id"),
            ),
            models.CheckConstraint(name="ck_timer_schedules_state", condition=Q(state__in=TimerState.values)),
            models.CheckConstraint(
                name="ck_timer_schedules_reached",
                condition=Q(state=TimerState.SCHEDULED, reached_at__isnull=True)
                | Q(state=TimerState.REACHED, reached_at__isnull=False),
            ),
        ]
        indexes = [
            # A tenant's due timers: the polling query of the spec, and the poller's when tenants have to share.
            LongNamedIndex(name="idx_timer_schedules_due_at", fields=["tenant_id", "state", "due_at"]),
            # Tracing a request across tenants.
            LongNamedIndex(name="idx_timer_schedules_correlation_id", fields=["correlation_id"]),
            # The due timers of the shards that a poller owns, and nothing else. Host and tenant are in the index so
            # that timers that are held back are skipped without reading their rows.
            PollingIndex(
                name="idx_timer_schedules_shard",
                fields=["shard_id", "due_at", "host", "tenant_id"],
                condition=Q(state=TimerState.SCHEDULED),
                full=("shard_id", "state", "due_at", "host", "tenant_id"),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.service_call_id} due {self.due_at}"


class TimerShard(Lease):
    """The ownership record of one shard. Shard ids are global: all namespaces share them."""

    shard_id = models.PositiveIntegerField(primary_key=True)

    class Meta:
        db_table = "timer_shards"

    def __str__(self) -> str:
        return str(self.shard_id)


class ShardSize(models.Model):
    """How many scheduled timers a shard had when they were counted (timers.shard_sizes).

    A table of its own: the rows of `timer_shards` are locked by each batch that an engine starts.
    """

    shard_id = models.PositiveIntegerField(primary_key=True)
    scheduled = models.PositiveBigIntegerField(default=0)
    counted_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "timer_shard_sizes"

    def __str__(self) -> str:
        return f"{self.shard_id}: {self.scheduled}"


# The upper bound of NODE_LEASE_SECONDS, which may differ between nodes.
MAX_NODE_LEASE = timedelta(seconds=30)
# A node whose lease ends later is one from before the database's clock was set back, and has sent no heartbeat since.
MAX_NODE_LEASE_AHEAD = MAX_NODE_LEASE + CLOCK_MARGIN


class NodeRole(models.TextChoices):
    ENGINE = "engine"
    DISPATCHER = "dispatcher"
    LEAVING = "leaving"  # an engine that only finishes the attempts it has started
    STANDBY = "standby"  # a worker of a cluster whose roles other processes play


class NodeQuerySet(models.QuerySet["Node"]):
    def dead(self) -> Self:
        """Return the nodes whose lease has ended by the database's clock."""
        return self.filter(lease_until__lt=DbNow())


class Node(models.Model):
    """A process that runs an engine or a dispatcher, or stands by for one. The row is its right to write: deleting it
    fences the node."""

    owner_id = models.UUIDField(primary_key=True)
    role = models.CharField(max_length=16, choices=NodeRole.choices)
    hostname = models.CharField(max_length=255)
    process_id = models.PositiveIntegerField()
    started_at = models.DateTimeField()
    lease_until = models.DateTimeField()
    in_flight = models.PositiveIntegerField(default=0)
    # Of the code that it runs. Processes of releases before this column leave it empty.
    version = models.CharField(max_length=32, default=get_version, db_default="")
    # The name of the cluster that it belongs to. A process that plays its role alone belongs to none.
    cluster = models.CharField(max_length=40, default="", db_default="")
    # The names of a dispatcher's publishers, sorted and separated by commas. Other roles, and dispatchers of releases
    # before this column, have none.
    publishers = models.TextField(null=True)

    objects = NodeQuerySet.as_manager()

    class Meta:
        db_table = "nodes"
        constraints = [models.CheckConstraint(name="ck_nodes_role", condition=Q(role__in=NodeRole.values))]

    def __str__(self) -> str:
        return f"{self.role} {self.owner_id}"

    @property
    def publisher_names(self) -> list[str]:
        return self.publishers.split(",") if self.publishers else []

    def is_alive(self, now: datetime) -> bool:
        """Return whether the lease has not ended. The last instant of the lease still counts as alive.

        A lease that ends later than any lease can is void.
        """
        return now <= self.lease_until <= now + MAX_NODE_LEASE_AHEAD


class Cell(models.Model):
    """The identity of this database among those that share a timer store (timers.cell): a row with this key."""

    KEY = 1

    id = models.PositiveSmallIntegerField(primary_key=True, default=KEY)
    cell_id = models.UUIDField()
    since = models.DateTimeField()

    class Meta:
        db_table = "cells"

    def __str__(self) -> str:
        return str(self.cell_id)


class DispatchPause(models.Model):
    """The pause of dispatch (timers.pause), while there is one: a row with this key."""

    KEY = 1

    id = models.PositiveSmallIntegerField(primary_key=True, default=KEY)
    since = models.DateTimeField()
    # As in the audit log.
    paused_by = models.CharField(max_length=150)
    reason = models.CharField(max_length=200, default="")

    class Meta:
        db_table = "dispatch_pauses"

    def __str__(self) -> str:
        return f"paused since {self.since}"

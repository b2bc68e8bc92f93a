"""Service calls, which only orchestration.lifecycle writes, and the rollups of orchestration.statistics.rollup."""

from django.db import models
from django.db.models import Case, F, Q, Value, When

from eventservice.db.constraints import CompositeForeignKey, LongNamedIndex, PollingIndex
from eventservice.kernel.tenancy import TenantScopedModel
from eventservice.tenants.models import MAX_NAMESPACE_LENGTH, MAX_STORE_NAME_LENGTH
from orchestration.states import LIVE, TERMINAL, Delivery, ResponseContract, Status

# Calls that wait for another attempt, because one has failed or was interrupted.
RETRYING = Q(status=Status.SCHEDULED, attempt__gte=1)


class ServiceCall(TenantScopedModel):
    pk = models.CompositePrimaryKey("tenant_id", "service_call_id")
    tenant_id = models.UUIDField()
    service_call_id = models.UUIDField()
    name = models.CharField(max_length=200)
    status = models.CharField(max_length=16, choices=Status.choices)
    submitted_at = models.DateTimeField()
    # When the next attempt is due; after the last attempt, when that was due.
    due_at = models.DateTimeField()
    # The start of the first attempt, from which max_attempts_duration counts. The attempt log has that of each attempt.
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    request_spec = models.JSONField()
    outcome_meta = models.JSONField(null=True)

    namespace = models.CharField(max_length=MAX_NAMESPACE_LENGTH)
    # The durable timer's id, unique among the namespace's live calls: the id of a finished timer can be used again.
    external_id = models.CharField(max_length=255, null=True)
    live_external_id = models.GeneratedField(
        expression=Case(When(status__in=sorted(LIVE), then=F("external_id")), default=Value(None)),
        output_field=models.CharField(max_length=255, null=True),
        db_persist=True,
    )
    host = models.CharField(max_length=255)
    idempotency_key = models.CharField(max_length=255, null=True)
    request_fingerprint = models.CharField(max_length=64, null=True)
    correlation_id = models.UUIDField()
    replay_of = models.UUIDField(null=True)

    retry_policy = models.JSONField(null=True)
    timeout_seconds = models.FloatField(default=30.0)
    response_contract = models.CharField(
        max_length=16, choices=ResponseContract.choices, default=ResponseContract.STATUS
    )
    delivery = models.CharField(max_length=16, choices=Delivery.choices, default=Delivery.AT_LEAST_ONCE)

    # The current attempt, or the last one. An outcome with another execution_id comes too late.
    attempt = models.PositiveIntegerField(default=0)
    execution_id = models.UUIDField(null=True)
    # Attempts whose outcome was never recorded. They do not count against the retry policy.
    interruptions = models.PositiveIntegerField(default=0)
    deadline_at = models.DateTimeField(null=True)
    cancel_requested = models.BooleanField(default=False)
    next_seq = models.PositiveIntegerField(default=1)

    # Of a timer that is in a timer store: the number of the take under which it was fed last, the takes before that had
    # no attempt, and the time by which the attempt must start. Without the time the call waits for the next take.
    timer_take = models.PositiveIntegerField(null=True)
    timer_lapses = models.PositiveIntegerField(default=0, db_default=0)
    start_before = models.DateTimeField(null=True)

    class Meta:
        db_table = "service_calls"
        constraints = [
            models.CheckConstraint(name="ck_service_calls_status", condition=Q(status__in=Status.values)),
            models.CheckConstraint(
                name="ck_service_calls_contract", condition=Q(response_contract__in=ResponseContract.values)
            ),
            models.CheckConstraint(
                name="ck_service_calls_delivery", condition=Q(delivery__in=Delivery.values)
            ),
            models.CheckConstraint(
                name="ck_service_calls_finished",
                condition=Q(status__in=sorted(TERMINAL), finished_at__isnull=False)
                | Q(status__in=sorted(LIVE), finished_at__isnull=True),
            ),
            models.CheckConstraint(
                name="ck_service_calls_running",
                condition=Q(status=Status.RUNNING, deadline_at__isnull=False)
                | Q(status__in=sorted(set(Status) - {Status.RUNNING}), deadline_at__isnull=True),
            ),
            # Only a call that was never attempted has no execution_id.
            models.CheckConstraint(
                name="ck_service_calls_attempted",
                condition=Q(attempt__gte=1, execution_id__isnull=False, started_at__isnull=False)
                | Q(
                    attempt=0,
                    execution_id__isnull=True,
                    started_at__isnull=True,
                    status__in=[Status.CANCELED, Status.SCHEDULED],
                )
                # The attempts were made by other cells, or before this call was pruned.
                | Q(
                    timer_take__isnull=False,
                    execution_id__isnull=True,
                    status__in=[Status.CANCELED, Status.SCHEDULED],
                ),
            ),
            models.CheckConstraint(
                name="ck_service_calls_outcome",
                condition=Q(status__in=[Status.FAILED, Status.SUCCEEDED], outcome_meta__isnull=False)
                | Q(status__in=[Status.CANCELED, Status.RUNNING, Status.SCHEDULED]),
            ),
            models.CheckConstraint(
                name="ck_service_calls_interruptions", condition=Q(interruptions__lte=F("attempt"))
            ),
            models.CheckConstraint(
                name="ck_service_calls_fed",
                condition=Q(timer_take__isnull=False) | Q(start_before__isnull=True),
            ),
            models.UniqueConstraint(
                name="uq_service_calls_live_timer", fields=["tenant_id", "namespace", "live_external_id"]
            ),
            models.UniqueConstraint(
                name="uq_service_calls_idempotency", fields=["tenant_id", "idempotency_key"]
            ),
        ]
        indexes = [
            # Lists by status, soonest or latest due first.
            LongNamedIndex(name="idx_service_calls_status", fields=["tenant_id", "status", "due_at"]),
            # Lists in the order of submission (all calls, those of a host, those of a name), and the calls of one
            # request. These columns never change, so on SQLite and MariaDB only the insert writes the indexes.
            # PostgreSQL writes every index of a row when one indexed column changes.
            # (The status is not part of them: SQLite expects ten rows of a tenant, and would prefer an index with id
            # and status to better ones.)
            LongNamedIndex(name="idx_service_calls_submitted", fields=["tenant_id", "submitted_at"]),
            # Hosts and names are also found by their beginning: on PostgreSQL by LIKE, in a database of any locale.
            LongNamedIndex(
                name="idx_service_calls_host",
                fields=["tenant_id", "host", "submitted_at"],
                opclasses=["uuid_ops", "varchar_pattern_ops", "timestamptz_ops"],
            ),
            LongNamedIndex(
                name="idx_service_calls_name",
                fields=["tenant_id", "name", "submitted_at"],
                opclasses=["uuid_ops", "varchar_pattern_ops", "timestamptz_ops"],
            ),
            LongNamedIndex(name="idx_service_calls_correlation", fields=["tenant_id", "correlation_id"]),
            # The replays of a call. Calls that are no replays are not in it.
            PollingIndex(
                name="idx_service_calls_replay",
                fields=["tenant_id", "replay_of"],
                condition=Q(replay_of__isnull=False),
                full=("tenant_id", "replay_of"),
            ),
            # All calls of a durable timer's id, or of ids with a prefix, and lists of timers. Other calls are not in it.
            PollingIndex(
                name="idx_service_calls_timer",
                fields=["tenant_id", "namespace", "external_id"],
                # PostgreSQL: for LIKE, in a database of any locale.
                opclasses=["uuid_ops", "varchar_ops", "varchar_pattern_ops"],
                condition=Q(external_id__isnull=False),
                full=("tenant_id", "namespace", "external_id"),
            ),
            # Calls that wait for another attempt: lists, counts, and the hosts that let them wait.
            PollingIndex(
                name="idx_service_calls_retrying",
                fields=["tenant_id", "status", "attempt", "submitted_at"],
                condition=RETRYING,
                full=("tenant_id", "status", "attempt", "submitted_at"),
            ),
            # The watchdog: attempts past their deadline.
            PollingIndex(
                name="idx_service_calls_deadline",
                fields=["deadline_at"],
                condition=Q(status=Status.RUNNING),
                full=("status", "deadline_at"),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.service_call_id})"


class ServiceCallTag(TenantScopedModel):
    pk = models.CompositePrimaryKey("tenant_id", "service_call_id", "tag")
    tenant_id = models.UUIDField()
    service_call_id = models.UUIDField()
    tag = models.CharField(max_length=64)
    service_call = models.ForeignObject(
        ServiceCall,
        on_delete=models.DO_NOTHING,
        from_fields=("tenant_id", "service_call_id"),
        to_fields=("tenant_id", "service_call_id"),
        related_name="tags",
    )

    class Meta:
        db_table = "service_call_tags"
        constraints = [
            CompositeForeignKey(
                name="fk_service_call_tags_call",
                fields=("tenant_id", "service_call_id"),
                to="orchestration.ServiceCall",
                to_fields=("tenant_id", "service_call_id"),
            )
        ]
        indexes = [
            # Calls that carry a tag.
            LongNamedIndex(name="idx_service_call_tags_tag", fields=["tenant_id", "tag", "service_call_id"])
        ]

    def __str__(self) -> str:
        return self.tag


class TimerMark(TenantScopedModel):
    """The order to change a row of a timer store because a take has ended. It is written with the end, and deleted when done.

    It has no foreign key: it outlives a call that is deleted meanwhile.
    """

    pk = models.CompositePrimaryKey("tenant_id", "service_call_id", "take")
    tenant_id = models.UUIDField()
    service_call_id = models.UUIDField()
    take = models.PositiveIntegerField()
    store = models.CharField(max_length=MAX_STORE_NAME_LENGTH)
    namespace = models.CharField(max_length=MAX_NAMESPACE_LENGTH)
    timer_id = models.CharField(max_length=255)
    shard_id = models.PositiveIntegerField()
    # The time in the row that was taken.
    execute_at = models.DateTimeField()
    # When the next attempt is due. Null: the timer is removed.
    next_at = models.DateTimeField(null=True)
    failures = models.PositiveIntegerField()
    interruptions = models.PositiveIntegerField()
    first_started_at = models.DateTimeField(null=True)
    next_seq = models.PositiveIntegerField()
    marked_at = models.DateTimeField()

    class Meta:
        db_table = "timer_marks"
        indexes = [
            # The marks of a store that are applied next.
            LongNamedIndex(name="idx_timer_marks_store", fields=["store", "marked_at"])
        ]

    def __str__(self) -> str:
        return f"take {self.take} of {self.service_call_id}"


class Resolution(models.TextChoices):
    MINUTE = "minute"
    HOUR = "hour"


class CallRollup(TenantScopedModel):
    """How a tenant's calls that were due in a minute or an hour ended. It outlives the calls."""

    pk = models.CompositePrimaryKey("tenant_id", "resolution", "starts_at")
    tenant_id = models.UUIDField()
    resolution = models.CharField(max_length=8, choices=Resolution.choices)
    starts_at = models.DateTimeField()
    succeeded = models.PositiveIntegerField()
    failed = models.PositiveIntegerField()
    canceled = models.PositiveIntegerField()
    # How many calls that succeeded or failed started their first attempt within this many milliseconds of their due
    # time, and not within the next smaller bound: orchestration.statistics.aggregation.LATENESS_BUCKETS_MS.
    late_5 = models.PositiveIntegerField()
    late_10 = models.PositiveIntegerField()
    late_25 = models.PositiveIntegerField()
    late_50 = models.PositiveIntegerField()
    late_100 = models.PositiveIntegerField()
    late_250 = models.PositiveIntegerField()
    late_500 = models.PositiveIntegerField()
    late_1000 = models.PositiveIntegerField()
    late_2500 = models.PositiveIntegerField()
    late_5000 = models.PositiveIntegerField()
    late_10000 = models.PositiveIntegerField()
    late_60000 = models.PositiveIntegerField()
    late_more = models.PositiveIntegerField()
    # Some of its calls were Scheduled or Running when it was counted: it will be counted again.
    is_open = models.BooleanField()
    counted_at = models.DateTimeField()

    class Meta:
        db_table = "call_rollups"
        constraints = [
            models.CheckConstraint(
                name="ck_call_rollups_resolution", condition=Q(resolution__in=Resolution.values)
            )
        ]
        indexes = [
            # Charts of all tenants together, and retention.
            LongNamedIndex(name="idx_call_rollups_starts_at", fields=["resolution", "starts_at"]),
            # Rollups that will be counted again.
            PollingIndex(
                name="idx_call_rollups_open",
                fields=["tenant_id", "resolution", "starts_at"],
                condition=Q(is_open=True),
                full=("tenant_id", "is_open", "resolution", "starts_at"),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.resolution} from {self.starts_at}"


class HostRollup(TenantScopedModel):
    """The same for the calls to one host. Each minute or hour keeps only the hosts with the most calls or failures."""

    pk = models.CompositePrimaryKey("tenant_id", "resolution", "starts_at", "host")
    tenant_id = models.UUIDField()
    resolution = models.CharField(max_length=8, choices=Resolution.choices)
    starts_at = models.DateTimeField()
    host = models.CharField(max_length=255)
    succeeded = models.PositiveIntegerField()
    failed = models.PositiveIntegerField()
    canceled = models.PositiveIntegerField()

    class Meta:
        db_table = "host_rollups"
        constraints = [
            models.CheckConstraint(
                name="ck_host_rollups_resolution", condition=Q(resolution__in=Resolution.values)
            )
        ]
        indexes = [
            # Charts of all tenants together, and retention.
            LongNamedIndex(name="idx_host_rollups_starts_at", fields=["resolution", "starts_at"]),
        ]

    def __str__(self) -> str:
        return f"{self.host}, {self.resolution} from {self.starts_at}"


class RollupMark(TenantScopedModel):
    """How far a tenant's calls have been counted into rollups."""

    tenant_id = models.UUIDField(primary_key=True)
    # A round increments this when it writes; a round that finds it incremented by another drops its counts.
    version = models.BigIntegerField(default=0)
    # Minutes before this are counted again only if they are open.
    covered_until = models.DateTimeField()
    # Calls that had ended by then are counted.
    counted_until = models.DateTimeField()
    # Calls from before the first round that were due before this are still to be counted. Null: there are none.
    history_until = models.DateTimeField(null=True)

    class Meta:
        db_table = "rollup_marks"

    def __str__(self) -> str:
        return f"covered until {self.covered_until}"

"""The ServiceCall aggregate. orchestration.lifecycle is the only writer of these tables."""

from django.db import models
from django.db.models import Case, F, Q, Value, When

from eventservice.kernel.constraints import CompositeForeignKey, LongNamedIndex, PollingIndex
from eventservice.kernel.tenancy import TenantManager
from orchestration.states import LIVE, Delivery, ResponseContract, Status


class ServiceCall(models.Model):
    pk = models.CompositePrimaryKey("tenant_id", "service_call_id")
    tenant_id = models.UUIDField()
    service_call_id = models.UUIDField()
    name = models.CharField(max_length=200)
    status = models.CharField(max_length=16, choices=Status.choices)
    submitted_at = models.DateTimeField()
    # When its next attempt is due; after the last, when that was due.
    due_at = models.DateTimeField()
    # The start of the first attempt: retries count their time from it. Each attempt has its own in the log.
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    request_spec = models.JSONField()
    outcome_meta = models.JSONField(null=True)

    namespace = models.CharField(max_length=64)
    # The durable timer's id. It is unique among the namespace's live calls: a finished timer's may be used again.
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

    # The attempt now running, or the last one; a result that carries another execution_id comes too late.
    attempt = models.PositiveIntegerField(default=0)
    execution_id = models.UUIDField(null=True)
    # Attempts whose end nobody saw. They do not count against the retry policy.
    interruptions = models.PositiveIntegerField(default=0)
    deadline_at = models.DateTimeField(null=True)
    cancel_requested = models.BooleanField(default=False)
    next_seq = models.PositiveIntegerField(default=1)

    objects = TenantManager()

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
            # Lists by submission: all, of a host, of a name; and what one request made. Their columns never change,
            # so on SQLite and MariaDB only the insert writes them. PostgreSQL, whose updates write every index
            # of a row once one indexed column changes, appends to each of them again.
            LongNamedIndex(name="idx_service_calls_submitted", fields=["tenant_id", "submitted_at"]),
            LongNamedIndex(name="idx_service_calls_host", fields=["tenant_id", "host", "submitted_at"]),
            LongNamedIndex(name="idx_service_calls_name", fields=["tenant_id", "name", "submitted_at"]),
            LongNamedIndex(name="idx_service_calls_correlation", fields=["tenant_id", "correlation_id"]),
            # All calls that a durable timer's id has had, and lists of timers. Plain calls are not in it.
            PollingIndex(
                name="idx_service_calls_timer",
                fields=["tenant_id", "namespace", "external_id"],
                condition=Q(external_id__isnull=False),
                full=("tenant_id", "namespace", "external_id"),
            ),
            # The watchdog: attempts that should have ended.
            PollingIndex(
                name="idx_service_calls_deadline",
                fields=["deadline_at"],
                condition=Q(status=Status.RUNNING),
                full=("status", "deadline_at"),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.service_call_id})"


class ServiceCallTag(models.Model):
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

    objects = TenantManager()

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

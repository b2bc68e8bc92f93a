"""The attempt log: one row for each attempt, opened before the request is sent and closed with its outcome."""

from django.db import models
from django.db.models import Q

from eventservice.db.constraints import CompositeForeignKey, PollingIndex
from eventservice.kernel.tenancy import TenantScopedModel
from execution.outcome import METHODS


class HttpExecution(TenantScopedModel):
    """One attempt to make a service call: the request, its node, and the response or error."""

    pk = models.CompositePrimaryKey("tenant_id", "service_call_id", "execution_id")
    tenant_id = models.UUIDField()
    service_call_id = models.UUIDField()
    execution_id = models.UUIDField()
    attempt = models.PositiveIntegerField()
    node = models.UUIDField()
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    request_url = models.TextField()
    request_method = models.CharField(max_length=8)
    request_headers = models.JSONField()
    request_body = models.TextField(null=True)
    response_status = models.PositiveIntegerField(null=True)
    response_headers = models.JSONField(null=True)
    response_body = models.TextField(null=True)
    # The size of the whole body; response_body may be truncated.
    response_size = models.BigIntegerField(null=True)
    error_kind = models.CharField(max_length=16, null=True)
    error_message = models.TextField(null=True)
    latency_ms = models.FloatField(null=True)
    # How latency_ms divides into phases: `Timings.phases`.
    phases = models.JSONField(null=True)
    service_call = models.ForeignObject(
        "orchestration.ServiceCall",
        on_delete=models.DO_NOTHING,
        from_fields=("tenant_id", "service_call_id"),
        to_fields=("tenant_id", "service_call_id"),
        related_name="executions",
    )

    class Meta:
        db_table = "http_execution_log"
        verbose_name = "HTTP attempt"
        constraints = [
            CompositeForeignKey(
                name="fk_http_execution_log_call",
                fields=("tenant_id", "service_call_id"),
                to="orchestration.ServiceCall",
                to_fields=("tenant_id", "service_call_id"),
            ),
            models.CheckConstraint(
                name="ck_http_execution_log_method", condition=Q(request_method__in=METHODS)
            ),
            # A finished attempt has a response or an error, or both; one in progress has neither.
            models.CheckConstraint(
                name="ck_http_execution_log_finished",
                condition=Q(finished_at__isnull=True, response_status__isnull=True, error_kind__isnull=True)
                | Q(finished_at__isnull=False, response_status__isnull=False)
                | Q(finished_at__isnull=False, error_kind__isnull=False),
            ),
        ]
        indexes = [
            # Attempts in progress, by the node that makes them.
            PollingIndex(
                name="idx_http_execution_log_open",
                fields=["node"],
                condition=Q(finished_at__isnull=True),
                full=("finished_at", "node"),
            )
        ]

    def __str__(self) -> str:
        return f"attempt {self.attempt} of {self.service_call_id}"

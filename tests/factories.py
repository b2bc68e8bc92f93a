"""Rows as the system writes them, for tests of what reads them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import factory.declarations
import factory.django
from django.db.models import QuerySet

from eventservice.kernel.ids import new_id
from eventservice.tenants.models import Namespace, Tenant
from execution.models import HttpExecution
from orchestration.models import ServiceCall, ServiceCallTag
from outbox.models import OutboxEvent
from timers.models import TimerSchedule

# Any, because mypy takes what a factory creates for the factory itself.
Factory: Any = factory.django.DjangoModelFactory
declare: Any = factory.declarations

EARLIER = datetime(2026, 1, 1, tzinfo=UTC)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Rows(Factory):  # type: ignore[misc]
    class Meta:
        abstract = True


class TenantFactory(Rows):
    class Meta:
        model = Tenant

    name = declare.Sequence(lambda n: f"tenant-{n}")
    created_at = EARLIER


class NamespaceFactory(Rows):
    class Meta:
        model = Namespace

    tenant = declare.SubFactory(TenantFactory)
    name = "default"
    created_at = EARLIER


class Scoped(Rows):
    class Meta:
        abstract = True

    tenant_id = declare.LazyFunction(new_id)
    service_call_id = declare.LazyFunction(new_id)


def build_state_columns(status: str, at: datetime, attempt: int | None = None) -> dict[str, Any]:
    """Return the columns of a call that have to agree with its status. `at` stands for each of their moments."""
    if attempt is None:
        attempt = int(status not in ("Scheduled", "Canceled"))
    return {
        "attempt": attempt,
        "execution_id": new_id() if attempt else None,
        "started_at": at if attempt else None,
        "deadline_at": at if status == "Running" else None,
        "finished_at": None if status in ("Scheduled", "Running") else at,
        "outcome_meta": {} if status in ("Succeeded", "Failed") else None,
    }


class ServiceCallFactory(Scoped):
    """A call, whose columns agree with its status unless the test sets them."""

    class Meta:
        model = ServiceCall

    name = "call"
    status = "Scheduled"
    submitted_at = due_at = EARLIER
    request_spec = declare.LazyFunction(
        lambda: {"method": "POST", "url": "http://example.test/", "headers": {}, "body": None}
    )
    namespace = "default"
    host = "example.test"
    correlation_id = declare.LazyFunction(new_id)

    @classmethod
    def _adjust_kwargs(cls, **columns: Any) -> dict[str, Any]:
        return build_state_columns(columns["status"], columns["due_at"], columns.get("attempt")) | columns


def set_status(calls: QuerySet[ServiceCall], status: str, **columns: Any) -> None:
    """Set the status of calls, and the columns that have to agree with it."""
    calls.update(status=status, **build_state_columns(status, EARLIER, columns.get("attempt")) | columns)


class ServiceCallTagFactory(Scoped):
    class Meta:
        model = ServiceCallTag

    tag = "urgent"


class TimerFactory(Scoped):
    class Meta:
        model = TimerSchedule

    correlation_id = declare.LazyFunction(new_id)
    due_at = registered_at = EARLIER
    shard_id = 0


class HttpExecutionFactory(Scoped):
    class Meta:
        model = HttpExecution

    execution_id = declare.LazyFunction(new_id)
    attempt = 1
    node = declare.LazyFunction(new_id)
    started_at = EARLIER
    request_url = "http://example.test/"
    request_method = "POST"
    request_headers = declare.LazyFunction(dict)
    response_status = error_kind = None
    finished_at = declare.LazyAttribute(
        lambda row: None if row.response_status is row.error_kind is None else EARLIER
    )


class OutboxEventFactory(Rows):
    class Meta:
        model = OutboxEvent

    tenant_id = declare.LazyFunction(new_id)
    aggregate_id = declare.LazyFunction(new_id)
    aggregate_seq = declare.Sequence(lambda n: n + 1)
    event_type = "ServiceCallSubmitted"
    event_payload = declare.LazyFunction(dict)
    created_at = EARLIER
    event_id = declare.LazyFunction(new_id)
    correlation_id = declare.LazyFunction(new_id)
    partition = 0

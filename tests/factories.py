"""Rows as the system writes them, for tests of what reads them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import factory.declarations
import factory.django

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


class ServiceCallFactory(Scoped):
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

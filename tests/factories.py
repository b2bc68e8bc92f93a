"""Rows as the system would have written them, for tests of what reads them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import factory

from eventservice.kernel.ids import new_id
from eventservice.tenants.models import Namespace, Tenant
from execution.models import HttpExecution
from orchestration.models import ServiceCall, ServiceCallTag
from outbox.models import OutboxEvent
from timers.models import TimerSchedule

EARLIER = datetime(2026, 1, 1, tzinfo=UTC)


class TenantFactory(factory.django.DjangoModelFactory[Tenant]):
    class Meta:
        model = Tenant

    name = factory.Sequence(lambda n: f"tenant-{n}")
    created_at = EARLIER


class NamespaceFactory(factory.django.DjangoModelFactory[Namespace]):
    class Meta:
        model = Namespace

    tenant = factory.SubFactory(TenantFactory)
    name = "default"
    created_at = EARLIER


class Scoped(factory.django.DjangoModelFactory[Any]):
    class Meta:
        abstract = True

    tenant_id = factory.LazyFunction(new_id)
    service_call_id = factory.LazyFunction(new_id)


class ServiceCallFactory(Scoped):
    class Meta:
        model = ServiceCall

    name = "call"
    status = "Scheduled"
    submitted_at = due_at = EARLIER
    request_spec = factory.LazyFunction(
        lambda: {"method": "POST", "url": "http://example.test/", "headers": {}, "body": None}
    )
    namespace = "default"
    host = "example.test"
    correlation_id = factory.LazyFunction(new_id)


class ServiceCallTagFactory(Scoped):
    class Meta:
        model = ServiceCallTag

    tag = "urgent"


class TimerFactory(Scoped):
    class Meta:
        model = TimerSchedule

    correlation_id = factory.LazyFunction(new_id)
    due_at = registered_at = EARLIER
    shard_id = 0


class HttpExecutionFactory(Scoped):
    class Meta:
        model = HttpExecution

    execution_id = factory.LazyFunction(new_id)
    attempt = 1
    node = factory.LazyFunction(new_id)
    started_at = EARLIER
    request_url = "http://example.test/"
    request_method = "POST"
    request_headers = factory.LazyFunction(dict)


class OutboxEventFactory(factory.django.DjangoModelFactory[OutboxEvent]):
    class Meta:
        model = OutboxEvent

    tenant_id = factory.LazyFunction(new_id)
    aggregate_id = factory.LazyFunction(new_id)
    aggregate_seq = factory.Sequence(lambda n: n + 1)
    event_type = "ServiceCallSubmitted"
    event_payload = factory.LazyFunction(dict)
    created_at = EARLIER
    event_id = factory.LazyFunction(new_id)
    correlation_id = factory.LazyFunction(new_id)
    partition = 0

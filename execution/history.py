"""Reading the attempt log of one call."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from execution.models import HttpExecution


def attempts_of(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Sequence[HttpExecution]:
    """The first one first."""
    attempts = HttpExecution.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id)
    return list(attempts.order_by("attempt", "execution_id"))


def last_attempt(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpExecution | None:
    attempts = HttpExecution.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id)
    return attempts.order_by("attempt", "execution_id").last()

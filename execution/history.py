"""Reading the attempt log of one call."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from execution.models import HttpExecution

# Of a call with more attempts than both, a list has the first and the last: a call may have any number.
FIRST_LISTED, LAST_LISTED = 4, 100
BODIES = ("request_headers", "request_body", "response_headers", "response_body")


def attempts_after(
    tenant_id: uuid.UUID, service_call_id: uuid.UUID, number: int, limit: int
) -> Sequence[HttpExecution]:
    """With their bodies, the first one first: those that follow the attempt of this number."""
    attempts = HttpExecution.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id)
    return list(attempts.filter(attempt__gt=number).order_by("attempt", "execution_id")[:limit])


def last_attempt(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpExecution | None:
    attempts = HttpExecution.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id)
    return attempts.order_by("attempt", "execution_id").last()


def attempts_without_bodies(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Sequence[HttpExecution]:
    """For lists: the first one first. Of many, those in the middle are left out."""
    attempts = HttpExecution.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id)
    attempts = attempts.defer(*BODIES).order_by("attempt", "execution_id")
    last = list(attempts.reverse()[: FIRST_LISTED + LAST_LISTED])[::-1]
    if len(last) < FIRST_LISTED + LAST_LISTED:
        return last
    return [*attempts[:FIRST_LISTED], *last[FIRST_LISTED:]]


def attempt_of(
    tenant_id: uuid.UUID, service_call_id: uuid.UUID, execution_id: uuid.UUID
) -> HttpExecution | None:
    attempts = HttpExecution.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id)
    return attempts.filter(execution_id=execution_id).first()

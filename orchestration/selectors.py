"""Reading service calls."""

from __future__ import annotations

import uuid
from typing import Any

from eventservice.kernel.errors import NotFound
from orchestration.models import ServiceCall, ServiceCallTag

COLUMNS = (
    "tenant_id", "service_call_id", "name", "status", "submitted_at", "due_at", "started_at", "finished_at",
    "request_spec", "outcome_meta", "namespace", "external_id", "idempotency_key", "correlation_id", "replay_of",
    "retry_policy", "timeout_seconds", "response_contract", "delivery", "attempt", "cancel_requested",
)  # fmt: skip


def call_of(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> dict[str, Any]:
    """Its columns and its tags; raises NotFound."""
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id)
    call = calls.values(*COLUMNS).first()
    if call is None:
        raise NotFound("service call")
    return {**call, "tags": tags_of(tenant_id, [service_call_id]).get(service_call_id, [])}


def tags_of(tenant_id: uuid.UUID, service_call_ids: list[uuid.UUID]) -> dict[uuid.UUID, list[str]]:
    tags: dict[uuid.UUID, list[str]] = {}
    rows = ServiceCallTag.objects.for_tenant(tenant_id).filter(service_call_id__in=service_call_ids)
    for service_call_id, tag in rows.values_list("service_call_id", "tag"):
        tags.setdefault(service_call_id, []).append(tag)
    return tags

"""Hosts that let calls wait for another attempt, and what a few calls to a host that fails say about the cause."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import OuterRef, Subquery
from django.db.models.fields.json import KeyTextTransform

from eventservice.db.bounded_count import count_capped
from eventservice.tenants.models import Tenant
from execution.url_rules import BadUrl, parse_target
from orchestration.models import RETRYING, ServiceCall
from orchestration.states import Status

# Of each tenant so many waiting calls are looked at, and of no more tenants than this.
MAX_CALLS_SAMPLED = 1000
MAX_TENANTS_SAMPLED = 20
# The errors and addresses of so many calls to a host are read.
MAX_ERRORS_READ = 20
# Calls that failed are looked for among this many of the latest calls to a host.
MAX_CALLS_SEARCHED = 200


@dataclass(frozen=True, slots=True)
class HostErrors:
    """The failures of calls to a host: where they were sent, and the most frequent error."""

    targets: Sequence[str] = ()  # the host with its port, unless that is the default one
    kind: str | None = None
    response_status: int | None = None


@dataclass(frozen=True, slots=True)
class RetryingHost:
    """A host with calls that wait for another attempt. If there are many, their number is estimated from a sample."""

    tenant_id: uuid.UUID
    host: str
    count: int
    is_estimate: bool
    errors: HostErrors


def list_retrying_hosts(tenant_id: uuid.UUID | None, *, min_calls: int, limit: int) -> list[RetryingHost]:
    """Return the hosts for which at least `min_calls` calls of a tenant wait, those with the most calls first."""
    tenants = _list_tenants(min_calls) if tenant_id is None else [tenant_id]
    found = [host for tenant in tenants for host in _sample_tenant(tenant, min_calls)]
    found.sort(key=lambda found: (-found[2], found[1]))
    return [
        RetryingHost(tenant, host, count, is_estimate, _read_errors(tenant, host, calls))
        for tenant, host, count, is_estimate, calls in found[:limit]
    ]


def _list_tenants(min_calls: int) -> list[uuid.UUID]:
    """Return tenants that have so many waiting calls. It takes one index lookup per tenant."""
    waiting = ServiceCall.objects.for_tenant(OuterRef("pk")).filter(RETRYING)  # type: ignore[arg-type]
    # In the order of the index. PostgreSQL expects so many of them that it would rather scan the table.
    last = Subquery(waiting.order_by("attempt").values("tenant_id")[min_calls - 1 : min_calls])
    tenants = Tenant.objects.annotate(last_waiting=last).filter(last_waiting__isnull=False)
    return list(tenants.order_by("pk").values_list("pk", flat=True)[:MAX_TENANTS_SAMPLED])


def _sample_tenant(
    tenant_id: uuid.UUID, min_calls: int
) -> list[tuple[uuid.UUID, str, int, bool, Sequence[uuid.UUID]]]:
    waiting = ServiceCall.objects.for_tenant(tenant_id).filter(RETRYING)
    ordered = waiting.order_by("attempt", "submitted_at")
    sample = list(ordered.values_list("host", "service_call_id")[:MAX_CALLS_SAMPLED])
    is_estimate = len(sample) == MAX_CALLS_SAMPLED
    total = count_capped(waiting) if is_estimate else len(sample)
    calls_by_host: defaultdict[str, list[uuid.UUID]] = defaultdict(list)
    for host, service_call_id in sample:
        calls_by_host[host].append(service_call_id)
    counts = {host: len(calls) * total // len(sample) for host, calls in calls_by_host.items()}
    return [
        (tenant_id, host, counts[host], is_estimate, calls[:MAX_ERRORS_READ])
        for host, calls in calls_by_host.items()
        if counts[host] >= min_calls
    ]


def find_failed_errors(tenant_id: uuid.UUID, host: str) -> HostErrors:
    """Return how the latest calls to a host failed, as far as they are among its latest calls."""
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(host=host).order_by("-submitted_at")
    latest = calls.values_list("service_call_id", "status")[:MAX_CALLS_SEARCHED]
    failed = [service_call_id for service_call_id, status in latest if status == Status.FAILED]
    return _read_errors(tenant_id, host, failed[:MAX_ERRORS_READ])


def _read_errors(tenant_id: uuid.UUID, host: str, service_call_ids: Sequence[uuid.UUID]) -> HostErrors:
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id__in=service_call_ids)
    targets: Counter[str] = Counter()
    errors: Counter[tuple[str | None, int | None]] = Counter()
    for url, outcome in calls.order_by().values_list(KeyTextTransform("url", "request_spec"), "outcome_meta"):
        targets[_get_authority(url or "", host)] += 1
        meta = outcome or {}
        errors[(meta.get("errorMeta") or {}).get("kind"), (meta.get("responseMeta") or {}).get("status")] += 1
    (kind, status), _ = errors.most_common(1)[0] if errors else ((None, None), 0)
    return HostErrors([target for target, _ in targets.most_common() if target], kind, status)


def _get_authority(url: str, host: str) -> str:
    try:
        origin = parse_target(url).origin
    except BadUrl:  # stored under other rules
        return host
    return origin.authority if origin.host == host else host

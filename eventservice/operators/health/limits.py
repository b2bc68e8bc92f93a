"""The findings on tenants at their limits."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from eventservice.kernel.findings import Finding, Severity
from eventservice.operators.formatting import format_clock, format_share, format_size
from eventservice.tenants.directory import list_nearly_full_tenants
from eventservice.tenants.models import LimitCode, LimitRefusal, Tenant
from eventservice.tenants.refusals import list_current_refusals
from orchestration.statistics.usage import read_usage

MAX_NAMED_LIMITS = 10
# A tenant that was refused something for its pending or storage limit, and uses less than this share of it now, has room again.
MAX_SHARE_WITH_ROOM = 0.5
# What a tenant stores is measured every minute.
STORAGE_MEASURED_AFTER = timedelta(minutes=2)
# A tenant that stores more than this share of what it may needs attention before anything is refused.
HIGH_STORED_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class LimitFinding(Finding):
    """A tenant that is at one of its limits, with what a page needs to link to it."""

    tenant_id: uuid.UUID | None = None


def check_tenant_limits(tenant_id: uuid.UUID | None, now: datetime) -> list[Finding]:
    """Return a finding for each limit for which a tenant is being refused, and for each tenant whose storage is nearly
    full, or one that is OK.

    A refusal for the pending or the storage limit is over when there is much room again, because the limit was raised or calls have ended.
    """
    refusals = list_current_refusals(tenant_id, now, MAX_NAMED_LIMITS)
    full = {refusal.tenant_id for refusal in refusals if refusal.code == LimitCode.STORAGE}
    nearly_full = list_nearly_full_tenants(tenant_id, HIGH_STORED_SHARE, MAX_NAMED_LIMITS)
    found = [
        *filter(None, (_build_refusal_finding(refusal, now) for refusal in refusals)),
        *(_build_storage_finding(tenant) for tenant in nearly_full if tenant.pk not in full),
    ]
    return [*found[:MAX_NAMED_LIMITS]] or [Finding("tenant_limits", Severity.OK, "No tenant is at a limit.")]


def _build_refusal_finding(refusal: LimitRefusal, now: datetime) -> LimitFinding | None:
    tenant, code = refusal.tenant, LimitCode(refusal.code)
    limit = getattr(tenant, code.column)
    present = f" The limit is {limit:,}."
    if code == LimitCode.PENDING:
        pending = read_usage(tenant).pending
        if pending < MAX_SHARE_WITH_ROOM * limit:
            return None
        present = f" Now: {pending:,} of {limit:,}."
        if pending < limit:
            present += " A batch for which this leaves too little room is refused as a whole."
    elif code == LimitCode.STORAGE:
        is_measured = now - refusal.last_at > STORAGE_MEASURED_AFTER
        if is_measured and tenant.stored_bytes < MAX_SHARE_WITH_ROOM * limit:
            return None
        present = f" Now: {format_size(tenant.stored_bytes)} of {format_size(limit)}, as last measured."
    times = "once" if refusal.count == 1 else f"{refusal.count:,} times"
    if refusal.last_at - refusal.since >= timedelta(minutes=1):
        times += f" since {format_clock(refusal.since, now)}"
    return LimitFinding(
        code="tenant_limits",
        severity=Severity.WARNING,
        text=f"{tenant.name} was refused {times} for its {code.label}, last at {format_clock(refusal.last_at, now)}.{present}",
        remedy=f"{_REMEDIES[code]} `manage.py tenant limits {tenant.name}` shows and changes the limits. The web log has "
        f"each refused request, with the code {code}.",
        tenant_id=tenant.pk,
    )


_REMEDIES = {
    LimitCode.REQUESTS: "Ask who sends so many requests, or raise the limit.",
    LimitCode.BYTES: "Ask who sends so much, or raise the limit.",
    LimitCode.PENDING: "If its calls are overdue, find out why they are not sent. Otherwise it schedules more than it may: "
    "cancel calls, or raise the limit.",
    LimitCode.STORAGE: "Delete old calls, for example with `manage.py prune --older-than 30d`, or raise the limit.",
}


def _build_storage_finding(tenant: Tenant) -> LimitFinding:
    share = format_share(tenant.stored_bytes / tenant.max_stored_bytes) if tenant.max_stored_bytes else "all"
    return LimitFinding(
        code="tenant_limits",
        severity=Severity.WARNING,
        text=f"{tenant.name} stores {share} of the {tenant.max_stored_bytes:,} bytes that it may.",
        remedy=f"At the limit, its submissions are refused. {_REMEDIES[LimitCode.STORAGE]}",
        tenant_id=tenant.pk,
    )

"""Refusals of requests and calls because their tenant is at one of its limits.

Each process counts them in memory, and adds them to the database at most every RECORD_SECONDS for each tenant and limit, so
that a refusal costs next to nothing. Refusals with pauses of up to EPISODE_GAP between them are one episode, and of each limit
of a tenant the last episode is kept.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import DatabaseError, InterfaceError, transaction
from django.db.models import Count, F

from eventservice.db.now import db_now
from eventservice.db.totals import add_to_totals
from eventservice.kernel.logging import get_logger
from eventservice.tenants.directory import get_profile
from eventservice.tenants.models import LimitCode, LimitRefusal

log = get_logger(__name__)

RECORD_SECONDS = 10.0
EPISODE_GAP = timedelta(minutes=5)
TOTALS_PREFIX = "refused "

Key = tuple[uuid.UUID, LimitCode]

_lock = threading.Lock()
_unrecorded: Counter[Key] = Counter()
_recorded_at: dict[Key, float] = {}


def note_refusal(tenant_id: uuid.UUID, code: LimitCode) -> None:
    """Count a refusal in memory. It writes nothing, so it may be called in a transaction that is rolled back."""
    with _lock:
        _unrecorded[tenant_id, code] += 1


def record_refusals() -> None:
    """Add what this process has counted to the database and to the log, as far as that is due.

    Call it outside transactions. If the database does not take it, it is kept for the next time.
    """
    if not _unrecorded:
        return
    due = _take_due()
    if not due:
        return
    try:
        names = {tenant_id: get_profile(tenant_id).name for tenant_id, _ in due}
        with transaction.atomic():
            _add(due)
    except (DatabaseError, InterfaceError) as error:
        log.warning("refusals_not_recorded", error=str(error))
        with _lock:
            _unrecorded.update(due)
        return
    for (tenant_id, code), count in due.items():
        log.warning(
            "tenant_at_limit",
            tenant=names[tenant_id],
            tenant_id=str(tenant_id),
            code=str(code),
            refused=count,
        )


def forget_refusals() -> None:
    """Forget what this process has counted (for tests)."""
    with _lock:
        _unrecorded.clear()
        _recorded_at.clear()


def _take_due() -> Counter[Key]:
    now = time.monotonic()
    with _lock:
        due = Counter(
            {
                key: count
                for key, count in _unrecorded.items()
                if key not in _recorded_at or now - _recorded_at[key] >= RECORD_SECONDS
            }
        )
        for key in due:
            del _unrecorded[key]
            _recorded_at[key] = now
    return due


def _add(counts: Counter[Key]) -> None:
    now, totals = db_now(), Counter[str]()
    # All processes lock the rows in the same order.
    for (tenant_id, code), count in sorted(counts.items()):
        _add_to_episode(tenant_id, code, count, now)
        totals[TOTALS_PREFIX + code] += count
    add_to_totals(totals)


def _add_to_episode(tenant_id: uuid.UUID, code: LimitCode, count: int, now: datetime) -> None:
    row = LimitRefusal.objects.for_tenant(tenant_id).filter(code=code)
    if row.filter(last_at__gte=now - EPISODE_GAP).update(count=F("count") + count, last_at=now):
        return
    if row.filter(last_at__lt=now - EPISODE_GAP).update(since=now, last_at=now, count=count):
        return
    fresh = LimitRefusal(tenant_id=tenant_id, code=code, since=now, last_at=now, count=0)
    LimitRefusal.objects.bulk_create([fresh], ignore_conflicts=True)
    row.update(count=F("count") + count, last_at=now)


def list_refusals(tenant_id: uuid.UUID) -> list[LimitRefusal]:
    """Return the last episode of each limit of a tenant, the latest first."""
    return list(LimitRefusal.objects.for_tenant(tenant_id).order_by("-last_at", "code"))


def list_current_refusals(tenant_id: uuid.UUID | None, now: datetime, limit: int) -> Sequence[LimitRefusal]:
    """Return the episodes that are not over, of one tenant or of all, each with its tenant: those with the most refusals."""
    rows = (
        LimitRefusal.across_tenants.all() if tenant_id is None else LimitRefusal.objects.for_tenant(tenant_id)
    )
    current = rows.filter(last_at__gte=now - EPISODE_GAP).select_related("tenant")
    return list(current.order_by("-count", "tenant__name", "code")[:limit])


def count_current_refusals(now: datetime) -> dict[LimitCode, int]:
    """Return how many tenants are being refused, by limit."""
    current = LimitRefusal.across_tenants.filter(last_at__gte=now - EPISODE_GAP)
    counts = dict(current.order_by().values_list("code").annotate(tenants=Count("tenant_id")))
    return {code: counts.get(code, 0) for code in LimitCode}

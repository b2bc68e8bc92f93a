"""The job that measures how much tenants store, which their limit is compared with (orchestration.admission).

Counting on the way would cost each submission a write to a row that all of a tenant's submissions share, and would be wrong
after each crash. So the tables themselves are measured. Measuring a tenant takes as long as reading all it has, and is
repeated so seldom that it takes a hundredth of the time.
"""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

from django.db import DatabaseError
from django.db.models import Count, Sum

from eventservice.db.sql import StoredBytes
from eventservice.kernel.logging import get_logger
from eventservice.tenants.directory import list_tenants_to_measure, record_stored_bytes
from execution.attempt_log import measure_attempts
from orchestration.admission import CALL_BYTES
from orchestration.models import ServiceCall

log = get_logger(__name__)

# Beside its bodies, an attempt has columns: about so many bytes.
ATTEMPT_BYTES = 500
MIN_INTERVAL = timedelta(seconds=50)  # the job runs each minute
INTERVAL_FACTOR = 100
# What is too large to be read within the time limit of a statement is tried again after this time.
RETRY_INTERVAL = timedelta(hours=1)


def measure_storage(seconds: float) -> None:
    """Measure the tenants whose turn it is, until the time is over."""
    deadline = time.monotonic() + seconds
    for tenant_id in list_tenants_to_measure():
        _measure(tenant_id)
        # Checked after a tenant: a round always does some work, however short its time is.
        if time.monotonic() >= deadline:
            return


def _measure(tenant_id: uuid.UUID) -> None:
    begin = time.monotonic()
    try:
        stored_bytes = compute_stored_bytes(tenant_id)
    except DatabaseError:
        log.exception("storage_not_measured", tenant_id=str(tenant_id))
        record_stored_bytes(tenant_id, None, RETRY_INTERVAL)
        return
    interval = timedelta(seconds=INTERVAL_FACTOR * (time.monotonic() - begin))
    record_stored_bytes(tenant_id, stored_bytes, max(MIN_INTERVAL, interval))


def compute_stored_bytes(tenant_id: uuid.UUID) -> int:
    """Return about how many bytes a tenant's calls and attempts occupy."""
    calls = ServiceCall.objects.for_tenant(tenant_id).aggregate(
        count=Count("*"), size=Sum(StoredBytes("request_spec"))
    )
    attempts, size = measure_attempts(tenant_id)
    return int((calls["size"] or 0) + calls["count"] * CALL_BYTES + size + attempts * ATTEMPT_BYTES)

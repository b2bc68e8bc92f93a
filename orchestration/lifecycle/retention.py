"""Delete calls that ended long ago."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from django.db import transaction

from eventservice.db.bulk import execute_rows
from eventservice.db.now import db_now
from eventservice.tenants.directory import list_tenant_ids
from orchestration.models import ServiceCall
from orchestration.states import TERMINAL, Status

PRUNE_BATCH_SIZE = 500


def prune_calls(older_than: timedelta, limit: int) -> int:
    """Delete up to `limit` calls that ended longer ago than that, with their tags, timers and attempts, in small
    transactions. Return how many."""
    before = db_now() - older_than
    pruned = 0
    for tenant_id in list_tenant_ids():
        for status in sorted(TERMINAL):
            while pruned < limit and (deleted := _prune_batch(tenant_id, status, before, limit - pruned)):
                pruned += deleted
    return pruned


def _prune_batch(tenant_id: uuid.UUID, status: Status, before: datetime, limit: int) -> int:
    # The index by status and due time finds them. Only a canceled call may end before it is due; it is deleted once its
    # due time has passed, too.
    ended = ServiceCall.objects.for_tenant(tenant_id).filter(
        status=status, due_at__lt=before, finished_at__lt=before
    )
    keys = ended.order_by("due_at").values_list("service_call_id", flat=True)[: min(limit, PRUNE_BATCH_SIZE)]
    with transaction.atomic():
        return execute_rows(
            "DELETE FROM service_calls WHERE tenant_id = %s AND service_call_id = %s AND status = %s",
            [(tenant_id, key, status.value) for key in keys],
        )

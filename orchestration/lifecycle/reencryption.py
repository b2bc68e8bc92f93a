"""Re-encrypt the secret headers of calls with the first of the ENCRYPTION_KEYS, so that the others can be removed."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from django.db import transaction

from eventservice.db.bulk import update_rows
from eventservice.db.errors import retry_on_deadlock
from eventservice.kernel.secrets import Reencryption
from eventservice.tenants.directory import get_profile, list_tenant_ids
from execution.redaction import reencrypt_headers
from orchestration.lifecycle.rows import lock_calls_with_requests
from orchestration.models import ServiceCall

READ_BATCH = 500
# Small, because whole requests are read and locked, and the engine may be waiting for one of them.
WRITE_BATCH = 20


def reencrypt_calls(work: Reencryption) -> Iterator[int]:
    """Yield how many calls were changed, after each short transaction. Calls that have ended count too: they may be
    replayed. Headers that are under the first key already are only read, so a run that was interrupted soon catches up.
    Headers whose names were not known to be secret when they were stored are encrypted, too."""
    for tenant_id in list_tenant_ids():
        after = uuid.UUID(int=0)
        secret_names = get_profile(tenant_id).secret_headers
        while batch := _read_headers_after(after, tenant_id):
            after = batch[-1][0]
            old = [
                key
                for key, headers in batch
                if headers and _reencrypt(headers, secret_names, work, key) != headers
            ]
            for start in range(0, len(old), WRITE_BATCH):
                yield _write(tenant_id, secret_names, old[start : start + WRITE_BATCH])


def _read_headers_after(
    after: uuid.UUID, tenant_id: uuid.UUID
) -> list[tuple[uuid.UUID, dict[str, Any] | None]]:
    following = ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id__gt=after)
    headers = following.order_by("service_call_id").values_list("service_call_id", "request_spec__headers")
    return list(headers[:READ_BATCH])


@retry_on_deadlock
def _write(tenant_id: uuid.UUID, secret_names: Collection[str], keys: Sequence[uuid.UUID]) -> int:
    with transaction.atomic():
        rows = [
            ({**spec, "headers": _reencrypt(spec["headers"], secret_names, Reencryption(), row.service_call_id)},
             tenant_id, row.service_call_id)
            for row, spec in lock_calls_with_requests((tenant_id, key) for key in keys)
        ]  # fmt: skip
        return update_rows(
            ServiceCall,
            "request_spec = {request_spec}",
            "tenant_id = {tenant_id} AND service_call_id = {service_call_id}",
            rows,
        )


def _reencrypt(
    headers: dict[str, Any], secret_names: Collection[str], work: Reencryption, service_call_id: uuid.UUID
) -> dict[str, Any]:
    return reencrypt_headers(
        headers, secret_names, lambda stored: work.reencrypt(stored, f"a header of call {service_call_id}")
    )

"""Whether a tenant may have more calls: it must be active, below its pending limit and below its storage limit.

orchestration.lifecycle asks for every new call, so no caller has to. Pending calls are not counted at each submission,
which would cost more than to store them: a count grants this process a share of the room that is left.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from eventservice.kernel.errors import Conflict, DomainError
from eventservice.tenants.directory import TenantProfile, get_profile
from eventservice.tenants.models import LimitCode
from eventservice.tenants.refusals import note_refusal
from orchestration.queries.calls import count_pending

# Other processes submit too, and calls end: after this long, pending calls are counted again.
ALLOWANCE_SECONDS = 30.0
# Beside its request, a call has columns, index entries, a timer and events: about so many bytes.
CALL_BYTES = 2000


class AdmissionRefused(DomainError):
    """The tenant may have no more calls at the moment, whatever they are."""


class TenantInactive(AdmissionRefused, Conflict):
    def __init__(self) -> None:
        detail = "This tenant is not active: nothing new is taken for it until it is activated."
        super().__init__("tenant_inactive", detail)


class PendingLimitReached(AdmissionRefused):
    def __init__(self, limit: int, room: int) -> None:
        super().__init__(
            "pending_ceiling",
            f"The pending limit of this tenant is {limit}. There is room for {room} more.",
        )


class StorageLimitReached(AdmissionRefused):
    def __init__(self, limit: int) -> None:
        detail = f"This tenant may store {limit} bytes. There is room again when calls are deleted, or pruned by the operator."
        super().__init__("storage_limit", detail)


@dataclass(slots=True)
class Allowance:
    """How many calls of a tenant this process may submit before it counts again. Other processes have shares too."""

    left: int
    counted_at: float
    max_pending: int  # the tenant's limit at that time


_allowances: dict[uuid.UUID, Allowance] = {}


@dataclass(slots=True)
class StoredSince:
    """How many bytes this process has stored for a tenant since its storage was measured."""

    measured: int  # what was measured, which changes with the next measurement
    added: int = 0


_stored_since: dict[uuid.UUID, StoredSince] = {}


def refuse_full(tenant_id: uuid.UUID) -> None:
    """Raise StorageLimitReached if a tenant stores as much as it may.

    The limit may be exceeded by what other processes store until the storage is measured again.
    """
    tenant = get_profile(tenant_id)
    if tenant.stored_bytes + _get_stored_since(tenant).added >= tenant.max_stored_bytes:
        note_refusal(tenant_id, LimitCode.STORAGE)
        raise StorageLimitReached(tenant.max_stored_bytes)


def note_stored(tenant_id: uuid.UUID, stored_bytes: int) -> None:
    """Count what is about to be stored for a tenant."""
    _get_stored_since(get_profile(tenant_id)).added += stored_bytes


def _get_stored_since(tenant: TenantProfile) -> StoredSince:
    since = _stored_since.get(tenant.tenant_id)
    if since is None or since.measured != tenant.stored_bytes:
        since = _stored_since[tenant.tenant_id] = StoredSince(tenant.stored_bytes)
    return since


def refuse_inactive(tenant_id: uuid.UUID) -> None:
    """Raise TenantInactive. Its own keys are refused before; operators' are not."""
    if not get_profile(tenant_id).active:
        raise TenantInactive


def find_room(tenant_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, int]:
    """Return how many more calls each tenant may have, given the tenant of each call that may be new; raise
    TenantInactive.

    A tenant has room for all of them, or as many as its pending limit allows. To be called before the transaction
    begins, as far as possible: SQLite's only writer should not wait for a count.
    """
    return {tenant_id: _find_room(tenant_id, calls) for tenant_id, calls in Counter(tenant_ids).items()}


def _find_room(tenant_id: uuid.UUID, calls: int) -> int:
    refuse_inactive(tenant_id)
    now, tenant = time.monotonic(), get_profile(tenant_id)
    allowance = _allowances.get(tenant_id)
    if (
        allowance is None
        or allowance.left < calls
        or allowance.max_pending != tenant.max_pending
        or now - allowance.counted_at > ALLOWANCE_SECONDS
    ):
        allowance = Allowance(_count_share(tenant, calls), now, tenant.max_pending)
        _allowances[tenant_id] = allowance
    return allowance.left


def _count_share(tenant: TenantProfile, calls: int) -> int:
    free = max(0, tenant.max_pending - count_pending(tenant.tenant_id, tenant.max_pending))
    return max(min(calls, free), free // 4)


def take_room(tenant_ids: Iterable[uuid.UUID], room: Mapping[uuid.UUID, int]) -> None:
    """Use up the room for new calls, given the tenant of each; raise PendingLimitReached or StorageLimitReached.

    The limit may be exceeded by what other processes submit within ALLOWANCE_SECONDS.
    """
    for tenant_id, calls in Counter(tenant_ids).items():
        if calls > room[tenant_id]:
            note_refusal(tenant_id, LimitCode.PENDING)
            raise PendingLimitReached(get_profile(tenant_id).max_pending, room[tenant_id])
        refuse_full(tenant_id)
        if allowance := _allowances.get(tenant_id):
            allowance.left -= calls


def forget_allowances() -> None:
    """Count pending calls again at the next submission, and forget what was stored (for tests)."""
    _allowances.clear()
    _stored_since.clear()

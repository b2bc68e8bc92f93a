"""Whether a tenant may have another call: it must be active, and have fewer pending than it may have.

To count them at each submission would cost more than to store it.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from eventservice.kernel.errors import Conflict, DomainError
from eventservice.tenants.directory import TenantProfile
from orchestration.queries.calls import count_pending

# Other processes submit too, and calls end: after this long the count is made anew.
KEPT_SECONDS = 30.0


class CeilingReached(DomainError):
    """The tenant has as many calls pending as it may have."""


@dataclass(slots=True)
class Allowance:
    """What this process may submit before it has to look again: a share, for others draw on the same room."""

    left: int
    counted_at: float


_rooms: dict[uuid.UUID, Allowance] = {}


def refuse_inactive(tenant: TenantProfile) -> None:
    """For operators: its own keys are refused altogether."""
    if not tenant.active:
        detail = "This tenant is not active: nothing new is taken for it until it is activated."
        raise Conflict("tenant_inactive", detail)


def take_room(tenant: TenantProfile, calls: int) -> None:
    """Raises CeilingReached. The ceiling may be passed by what others submit within a second."""
    now = time.monotonic()
    room = _rooms.get(tenant.tenant_id)
    if room is None or now - room.counted_at > (KEPT_SECONDS if room.left >= calls else 0.0):
        free = tenant.max_pending - count_pending(tenant.tenant_id, tenant.max_pending)
        if free < calls:
            raise CeilingReached(
                "pending_ceiling",
                f"This tenant may have {tenant.max_pending} calls pending; {free} more would fit.",
            )
        room = _rooms[tenant.tenant_id] = Allowance(max(calls, free // 4), now)
    room.left -= calls


def forget_rooms() -> None:
    _rooms.clear()

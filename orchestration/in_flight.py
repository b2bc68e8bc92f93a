"""What an engine has under way: how much of it is whose, and how much more each may begin."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import structlog

from eventservice.kernel.errors import NotFound
from eventservice.kernel.secrets import Undecipherable, decrypt_once
from eventservice.tenants.public import profile
from execution.public import AttemptKey
from orchestration.lifecycle import StartedCall
from timers.public import DueTimer, HeldBack

K = TypeVar("K")

log = structlog.get_logger(__name__)

# Large requests come in smaller batches: they are parsed in memory, where they may take twenty times their bytes.
LARGE = 10_000
BATCH_BYTES = 16_000_000
BYTES_OF_TENANT = 64_000_000


@dataclass(frozen=True, slots=True)
class EngineLimits:
    batch: int = 500
    in_flight: int = 20_000
    per_host: int = 5_000


DEFAULT_LIMITS = EngineLimits()


class Begun(NamedTuple):
    """What is kept of a call until its attempt ends: the request itself is the egress's by then."""

    key: AttemptKey
    lane: str
    headers: Mapping[str, Any]  # as they are stored
    request_bytes: int


class InFlight:
    def __init__(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.by_tenant: Counter[uuid.UUID] = Counter()
        self.by_lane: Counter[str] = Counter()
        self.bytes_of: Counter[uuid.UUID] = Counter()
        self._calls: dict[Hashable, Begun] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __getitem__(self, execution_id: Hashable) -> Begun:
        return self._calls[execution_id]

    @property
    def ids(self) -> Collection[Hashable]:
        return self._calls.keys()

    @property
    def places(self) -> int:
        return self.limits.in_flight - len(self._calls)

    def add(self, call: StartedCall) -> None:
        self._calls[call.key.execution_id] = Begun(
            call.key, call.lane, call.request.headers, call.request_bytes
        )
        self._count(self._calls[call.key.execution_id], 1)

    def remove(self, execution_id: Hashable) -> None:
        self._count(self._calls.pop(execution_id), -1)

    def _count(self, call: Begun, one: int) -> None:
        _add(self.by_tenant, call.key.tenant_id, one)
        _add(self.by_lane, call.lane, one)
        _add(self.bytes_of, call.key.tenant_id, one * call.request_bytes)

    def held_back(self) -> HeldBack:
        """Who has all that they may have: their due timers need not even be looked for."""
        tenants = [tenant for tenant, count in self.by_tenant.items() if count >= _ceiling(tenant)]
        lanes = [lane for lane, count in self.by_lane.items() if count >= self.limits.per_host]
        return HeldBack(tenants, lanes)

    def room(self) -> Room:
        return Room(self.limits.per_host, self.by_tenant.copy(), self.by_lane.copy(), self.bytes_of.copy())


@dataclass(slots=True)
class Room:
    """How much each tenant and each lane may still begin, within one batch."""

    per_host: int
    by_tenant: Counter[uuid.UUID]
    by_lane: Counter[str]
    bytes_of: Counter[uuid.UUID]
    batch_bytes: int = 0
    ceilings: dict[uuid.UUID, int] = field(default_factory=dict)

    def admit(self, timer: DueTimer) -> bool:
        if timer.tenant_id not in self.ceilings:
            self.ceilings[timer.tenant_id] = _ceiling(timer.tenant_id)
        if self.by_tenant[timer.tenant_id] >= self.ceilings[timer.tenant_id]:
            return False
        if self.by_lane[timer.lane] >= self.per_host or not self._may_be_read(timer):
            return False
        self.by_tenant[timer.tenant_id] += 1
        self.by_lane[timer.lane] += 1
        self.bytes_of[timer.tenant_id] += timer.request_bytes
        self.batch_bytes += timer.request_bytes
        return True

    def _may_be_read(self, timer: DueTimer) -> bool:
        if timer.request_bytes < LARGE:
            return True
        return self.batch_bytes < BATCH_BYTES and self.bytes_of[timer.tenant_id] < BYTES_OF_TENANT


def _add(counter: Counter[K], key: K, change: int) -> None:
    counter[key] += change
    if not counter[key]:
        del counter[key]


def _ceiling(tenant_id: uuid.UUID) -> int:
    """What a tenant may have under way. One that cannot be read, or whose requests cannot be signed, may have nothing,
    and holds up nobody else."""
    try:
        tenant = profile(tenant_id)
        if tenant.signing_secret:
            decrypt_once(tenant.signing_secret)
        return tenant.max_in_flight
    except (NotFound, Undecipherable) as unreadable:
        _report_unreadable(tenant_id, str(unreadable))
        return 0


@lru_cache(maxsize=1024)  # once a process: its timers stay due, and are found with every pass
def _report_unreadable(tenant_id: uuid.UUID, why: str) -> None:
    log.error("tenant_unreadable", tenant=str(tenant_id), why=why)

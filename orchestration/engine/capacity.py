"""What an engine has under way: how much of it is whose, and how much more each may begin."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from eventservice.kernel.errors import NotFound
from eventservice.kernel.logging import get_logger
from eventservice.kernel.secrets import Undecipherable, decrypt_cached
from eventservice.tenants.directory import get_profile
from execution.attempt_log import AttemptKey
from orchestration.lifecycle import StartedCall
from timers.poller import LARGE_REQUEST_BYTES, HeldBack
from timers.schedule import Timer

K = TypeVar("K")

log = get_logger(__name__)

# Large requests come in smaller batches: they are parsed in memory, where they may take twenty times their bytes.
MAX_BATCH_BYTES = 16_000_000
MAX_TENANT_BYTES = 64_000_000
MAX_TOTAL_BYTES = 512_000_000
# A host may have so many times as much of a tenant's under way as is left to it: a lone one three quarters of all.
HOST_SHARE_FACTOR = 3


@dataclass(frozen=True, slots=True)
class EngineLimits:
    batch: int = 500
    in_flight: int = 20_000
    per_host: int = 5_000


DEFAULT_LIMITS = EngineLimits()


class Begun(NamedTuple):
    """What is kept of a call until its attempt ends: the request itself is the egress's by then."""

    key: AttemptKey
    host: str
    headers: Mapping[str, Any]  # as they are stored
    secret_headers: Collection[str]  # the tenant's own
    request_bytes: int


@dataclass(slots=True)
class Room:
    """What is left of a tenant's ceiling, of calls or of bytes, and what of it goes to which host."""

    left: int
    taken: Counter[str]

    def has(self, host: str) -> bool:
        # A host that is dead keeps what it has taken: so it gets less, the less is left, and the others always some.
        return self.left > 0 and self.taken[host] < HOST_SHARE_FACTOR * self.left

    def take(self, host: str, amount: int) -> None:
        self.left -= amount
        self.taken[host] += amount


class Ledger:
    """What each tenant has under way, and how much of it at which host."""

    def __init__(self) -> None:
        self.of: Counter[uuid.UUID] = Counter()
        self.total = 0
        self._at: defaultdict[uuid.UUID, Counter[str]] = defaultdict(Counter)

    def add(self, tenant_id: uuid.UUID, host: str, change: int) -> None:
        self.total += change
        _add(self.of, tenant_id, change)
        at = self._at[tenant_id]
        _add(at, host, change)
        if not at:
            del self._at[tenant_id]

    def room(self, tenant_id: uuid.UUID, ceiling: int) -> Room:
        return Room(ceiling - self.of[tenant_id], Counter(self._at.get(tenant_id)))

    def full(self, ceilings: Iterable[tuple[uuid.UUID, int]]) -> HeldBack:
        tenants, hosts_by_tenant = [], {}
        for tenant_id, ceiling in ceilings:
            left = ceiling - self.of[tenant_id]
            if left <= 0:
                tenants.append(tenant_id)
            elif self.of[tenant_id] >= HOST_SHARE_FACTOR * left:  # else no host of its can have so much
                room = Room(left, self._at[tenant_id])
                if hosts := [host for host in room.taken if not room.has(host)]:
                    hosts_by_tenant[tenant_id] = hosts
        return HeldBack(tenants, hosts_by_tenant=hosts_by_tenant)


class InFlight:
    def __init__(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.calls = Ledger()
        self.bytes = Ledger()
        self.by_host: Counter[str] = Counter()
        self.refused: set[uuid.UUID] = set()  # for want of room, though they need have nothing under way
        self.refused_hosts: defaultdict[uuid.UUID, set[str]] = defaultdict(set)  # by the last batch
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

    def add(self, call: StartedCall, secret_headers: Collection[str]) -> None:
        self._calls[call.key.execution_id] = Begun(
            call.key, call.host, call.request.headers, secret_headers, call.request_bytes
        )
        self._count(self._calls[call.key.execution_id], 1)

    def remove(self, execution_id: Hashable) -> None:
        self._count(self._calls.pop(execution_id), -1)

    def _count(self, call: Begun, one: int) -> None:
        self.calls.add(call.key.tenant_id, call.host, one)
        self.bytes.add(call.key.tenant_id, call.host, one * call.request_bytes)
        _add(self.by_host, call.host, one)

    def held_back(self) -> HeldBack:
        """Who has all that they may have: their due timers need not even be looked for."""
        held = self.calls.full(
            (tenant, _get_max_in_flight(tenant)) for tenant in self.calls.of.keys() | self.refused
        )
        self.refused.intersection_update(held.tenants)
        # Those of the last batch sit this one out: a host that always has room for one or two more, and a long queue,
        # would fill each batch with what is refused.
        hosts_by_tenant, self.refused_hosts = self.refused_hosts, defaultdict(set)
        for tenant, full in held.hosts_by_tenant.items():
            hosts_by_tenant[tenant].update(full)
        hosts = [host for host, count in self.by_host.items() if count >= self.limits.per_host]
        ceiling = MAX_TENANT_BYTES if self.bytes.total < MAX_TOTAL_BYTES else 0
        large = self.bytes.full((tenant, ceiling) for tenant in self.bytes.of)
        return replace(held, hosts=hosts, hosts_by_tenant=hosts_by_tenant, large=large or None)

    def batch(self) -> BatchAdmission:
        return BatchAdmission(self)


@dataclass(slots=True)
class BatchAdmission:
    """How much each tenant and each host may still begin, within one batch."""

    under_way: InFlight
    by_host: Counter[str] = field(default_factory=Counter)
    calls: dict[uuid.UUID, Room] = field(default_factory=dict)
    bytes: dict[uuid.UUID, Room] = field(default_factory=dict)
    batch_bytes: int = 0

    def admit(self, timer: Timer) -> bool:
        tenant_id, host, size = timer.tenant_id, timer.host, timer.request_bytes
        if tenant_id not in self.calls:
            self.calls[tenant_id] = self.under_way.calls.room(tenant_id, _get_max_in_flight(tenant_id))
            self.bytes[tenant_id] = self.under_way.bytes.room(tenant_id, MAX_TENANT_BYTES)
        calls, of_bytes = self.calls[tenant_id], self.bytes[tenant_id]
        if calls.left <= 0:
            self.under_way.refused.add(tenant_id)
        if not calls.has(host) or not self._host_has_room(host):
            self.under_way.refused_hosts[tenant_id].add(host)
            return False
        if size >= LARGE_REQUEST_BYTES and not (self._has_room_for_large() and of_bytes.has(host)):
            return False
        calls.take(host, 1)
        of_bytes.take(host, size)
        self.by_host[host] += 1
        self.batch_bytes += size
        return True

    def _has_room_for_large(self) -> bool:
        under_way = self.under_way.bytes.total + self.batch_bytes
        return self.batch_bytes < MAX_BATCH_BYTES and under_way < MAX_TOTAL_BYTES

    def _host_has_room(self, host: str) -> bool:
        """Whoever's calls it takes."""
        return self.under_way.by_host[host] + self.by_host[host] < self.under_way.limits.per_host


def _add(counter: Counter[K], key: K, change: int) -> None:
    counter[key] += change
    if not counter[key]:
        del counter[key]


def _get_max_in_flight(tenant_id: uuid.UUID) -> int:
    """What a tenant may have under way. One that cannot be read, or whose requests cannot be signed, may have nothing,
    and holds up nobody else."""
    try:
        tenant = get_profile(tenant_id)
        if tenant.signing_secret:
            decrypt_cached(tenant.signing_secret)
        return tenant.max_in_flight
    except (NotFound, Undecipherable) as unreadable:
        _report_unreadable(tenant_id, str(unreadable))
        return 0


@lru_cache(maxsize=1024)  # once a process: its timers stay due, and are found with every pass
def _report_unreadable(tenant_id: uuid.UUID, why: str) -> None:
    log.error("tenant_unreadable", tenant_id=str(tenant_id), why=why)

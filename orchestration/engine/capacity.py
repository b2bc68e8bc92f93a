"""Limits on what an engine has in flight: how much more each tenant and host may start."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeVar

from eventservice.kernel.errors import NotFound
from eventservice.kernel.logging import get_logger
from eventservice.kernel.secrets import Undecipherable, decrypt_cached
from eventservice.tenants.directory import get_profile
from orchestration.lifecycle import StartedCall
from timers.port import LARGE_REQUEST_BYTES, HeldBack, Timer

Key = TypeVar("Key")

log = get_logger(__name__)

# Large requests start in smaller batches: parsed in memory, they may take twenty times their bytes.
MAX_BATCH_BYTES = 16_000_000
MAX_TENANT_BYTES = 64_000_000
MAX_TOTAL_BYTES = 512_000_000
# A host may have this many times as much of a tenant's room as is still left: a host alone gets three quarters.
HOST_SHARE_FACTOR = 3


@dataclass(frozen=True, slots=True)
class EngineLimits:
    max_batch: int = 500
    max_in_flight: int = 20_000
    max_per_host: int = 5_000


DEFAULT_LIMITS = EngineLimits()


@dataclass(slots=True)
class Room:
    """The remainder of a tenant's limit, in calls or in bytes, and how much of the limit each host has taken."""

    left: int
    taken_by_host: Counter[str]

    def has(self, host: str) -> bool:
        # A host that does not answer keeps what it has taken. So the less is left, the less it may take, and the
        # tenant's other hosts always find some room.
        return self.left > 0 and self.taken_by_host[host] < HOST_SHARE_FACTOR * self.left

    def take(self, host: str, amount: int) -> None:
        self.left -= amount
        self.taken_by_host[host] += amount


class Ledger:
    """How much each tenant has in flight, in calls or in bytes, and how much of it at which host."""

    def __init__(self) -> None:
        self.total = 0
        self.by_tenant: Counter[uuid.UUID] = Counter()
        self._by_tenant_host: defaultdict[uuid.UUID, Counter[str]] = defaultdict(Counter)

    def add(self, tenant_id: uuid.UUID, host: str, change: int) -> None:
        self.total += change
        _add(self.by_tenant, tenant_id, change)
        by_host = self._by_tenant_host[tenant_id]
        _add(by_host, host, change)
        if not by_host:
            del self._by_tenant_host[tenant_id]

    def find_room(self, tenant_id: uuid.UUID, limit: int) -> Room:
        return Room(limit - self.by_tenant[tenant_id], Counter(self._by_tenant_host.get(tenant_id)))

    def find_full(self, limits: Iterable[tuple[uuid.UUID, int]]) -> HeldBack:
        """Return the tenants that have reached their limits, and the hosts that have reached their share of one."""
        tenants, hosts_by_tenant = [], {}
        for tenant_id, limit in limits:
            left = limit - self.by_tenant[tenant_id]
            if left <= 0:
                tenants.append(tenant_id)
            elif (
                self.by_tenant[tenant_id] >= HOST_SHARE_FACTOR * left
            ):  # below that, no host can have its share
                room = Room(left, self._by_tenant_host[tenant_id])
                if hosts := [host for host in room.taken_by_host if not room.has(host)]:
                    hosts_by_tenant[tenant_id] = hosts
        return HeldBack(tenants, hosts_by_tenant=hosts_by_tenant)


class InFlight:
    """The started calls whose attempts have not been recorded. Their bodies are not kept: egress has those."""

    def __init__(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.calls = Ledger()
        self.bytes = Ledger()
        self.by_host: Counter[str] = Counter()
        self.refused_tenants: set[uuid.UUID] = set()  # they had no room, even with nothing in flight
        self.refused_hosts: defaultdict[uuid.UUID, set[str]] = defaultdict(set)  # by the last batch
        self._started: dict[Hashable, StartedCall] = {}

    def __len__(self) -> int:
        return len(self._started)

    def __getitem__(self, execution_id: Hashable) -> StartedCall:
        return self._started[execution_id]

    @property
    def ids(self) -> Collection[Hashable]:
        return self._started.keys()

    @property
    def free(self) -> int:
        return self.limits.max_in_flight - len(self._started)

    def add(self, calls: Iterable[StartedCall]) -> None:
        stripped = [call.strip_body() for call in calls]
        self._started.update((call.key.execution_id, call) for call in stripped)
        self._count(stripped, 1)

    def remove(self, execution_ids: Iterable[Hashable]) -> None:
        self._count([self._started.pop(execution_id) for execution_id in execution_ids], -1)

    def _count(self, calls: Sequence[StartedCall], one: int) -> None:
        # The calls of a batch have few tenants and hosts: one addition for each of them, instead of one for each call.
        sizes = defaultdict(list)
        for call in calls:
            sizes[call.key.tenant_id, call.host].append(call.request_bytes)
        for (tenant_id, host), of_both in sizes.items():
            self.calls.add(tenant_id, host, one * len(of_both))
            self.bytes.add(tenant_id, host, one * sum(of_both))
            _add(self.by_host, host, one * len(of_both))

    def find_held_back(self) -> HeldBack:
        """Return the tenants and hosts at their limits, so that the search for due timers can skip theirs."""
        tenants = self.calls.by_tenant.keys() | self.refused_tenants
        held_back = self.calls.find_full((tenant, get_max_in_flight(tenant)) for tenant in tenants)
        self.refused_tenants.intersection_update(held_back.tenants)
        # What the last batch refused sits this one out. Otherwise a host that always has room for one or two more, and
        # a long queue, would fill each batch with timers that are refused.
        hosts_by_tenant, self.refused_hosts = self.refused_hosts, defaultdict(set)
        for tenant, full in held_back.hosts_by_tenant.items():
            hosts_by_tenant[tenant].update(full)
        hosts = [host for host, count in self.by_host.items() if count >= self.limits.max_per_host]
        max_bytes = MAX_TENANT_BYTES if self.bytes.total < MAX_TOTAL_BYTES else 0
        large = self.bytes.find_full((tenant, max_bytes) for tenant in self.bytes.by_tenant)
        return replace(held_back, hosts=hosts, hosts_by_tenant=hosts_by_tenant, large=large or None)

    def open_batch(self) -> BatchAdmission:
        return BatchAdmission(self)


@dataclass(slots=True)
class BatchAdmission:
    """How much each tenant and each host may still start within one batch."""

    in_flight: InFlight
    by_host: Counter[str] = field(default_factory=Counter)
    calls: dict[uuid.UUID, Room] = field(default_factory=dict)
    bytes: dict[uuid.UUID, Room] = field(default_factory=dict)
    batch_bytes: int = 0

    def admit(self, timer: Timer) -> bool:
        """Take room for the timer's call. Return whether there was enough."""
        tenant_id, host, size = timer.tenant_id, timer.host, timer.request_bytes
        if tenant_id not in self.calls:
            self.calls[tenant_id] = self.in_flight.calls.find_room(tenant_id, get_max_in_flight(tenant_id))
            self.bytes[tenant_id] = self.in_flight.bytes.find_room(tenant_id, MAX_TENANT_BYTES)
        calls, of_bytes = self.calls[tenant_id], self.bytes[tenant_id]
        if calls.left <= 0:
            self.in_flight.refused_tenants.add(tenant_id)
        if not calls.has(host) or not self._has_host_room(host):
            self.in_flight.refused_hosts[tenant_id].add(host)
            return False
        if size >= LARGE_REQUEST_BYTES and not (self._has_room_for_large() and of_bytes.has(host)):
            return False
        calls.take(host, 1)
        of_bytes.take(host, size)
        self.by_host[host] += 1
        self.batch_bytes += size
        return True

    def _has_room_for_large(self) -> bool:
        total_bytes = self.in_flight.bytes.total + self.batch_bytes
        return self.batch_bytes < MAX_BATCH_BYTES and total_bytes < MAX_TOTAL_BYTES

    def _has_host_room(self, host: str) -> bool:
        """The calls of all tenants count."""
        return self.in_flight.by_host[host] + self.by_host[host] < self.in_flight.limits.max_per_host


def _add(counter: Counter[Key], key: Key, change: int) -> None:
    counter[key] += change
    if not counter[key]:
        del counter[key]


def get_max_in_flight(tenant_id: uuid.UUID) -> int:
    """Return the tenant's limit, or 0 if the tenant cannot be read or its requests cannot be signed: then its calls
    wait, and no other tenant's do."""
    try:
        tenant = get_profile(tenant_id)
        if tenant.signing_secret:
            decrypt_cached(tenant.signing_secret)
        return tenant.max_in_flight
    except (NotFound, Undecipherable) as error:
        _report_unreadable(tenant_id, str(error))
        return 0


@lru_cache(maxsize=1024)  # once a process: the tenant's timers stay due, and every pass finds them
def _report_unreadable(tenant_id: uuid.UUID, why: str) -> None:
    log.error("tenant_unreadable", tenant_id=str(tenant_id), why=why)

"""Hosts that let calls wait for another attempt, and what a few calls to a host that fails say about the cause."""

from __future__ import annotations

import random
import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import OuterRef, Subquery
from django.db.models.fields.json import KeyTextTransform

from eventservice.tenants.models import Tenant
from execution.url_rules import find_origin
from orchestration.models import RETRYING, ServiceCall
from orchestration.states import Status

# Of each tenant so many waiting calls are looked at, and of no more tenants than this.
MAX_CALLS_SAMPLED = 1000
MAX_TENANTS_SAMPLED = 20
# The errors and addresses of so many calls to a host are read.
MAX_ERRORS_READ = 20
# Calls of each outcome are looked for among this many of the latest calls to a host, and those that failed first among
# more of the latest failures of the tenant.
MAX_CALLS_SEARCHED = 200
MAX_FAILURES_SEARCHED = 1000
# Of the calls to a host of each outcome, the ports of so many are read.
MAX_PORTS_READ = 50


@dataclass(frozen=True, slots=True)
class TargetErrors:
    """The failures of calls to one port of a host, and the most frequent error."""

    name: str  # the host with its port, unless that is the default one
    filter_value: str  # lists of calls take it as their host
    share: float = 1.0  # of the failures of calls to the host that were looked at
    kind: str | None = None
    response_status: int | None = None


@dataclass(frozen=True, slots=True)
class PortOutcomes:
    """How many calls to one port of a host failed and succeeded.

    If not all calls to the host were read, and these went to several ports, the numbers are too rough to be shown:
    `examined` has what was counted.
    """

    errors: TargetErrors
    failed: int
    succeeded: int
    examined: ExaminedCalls | None = None

    @property
    def share(self) -> float:
        """The share of failures."""
        return self.failed / max(1, self.failed + self.succeeded)


@dataclass(frozen=True, slots=True)
class ExaminedCalls:
    """How many calls to a host were read because they failed or succeeded, and how many of them went to one port."""

    failed: int
    failed_at_port: int
    succeeded: int
    succeeded_at_port: int


@dataclass(slots=True)
class _Failures:
    """The errors of calls to one port, each with its kind and the status of its response."""

    port: int | None
    errors: Counter[tuple[str | None, int | None]] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class RetryingHost:
    """A port of a host with calls that wait for another attempt.

    If a tenant has many such calls, not all are looked at, so that at least `host_count` wait. If the host has several
    ports, and not all of these calls were read, `count` is an estimate from the number that was `examined`.
    """

    tenant_id: uuid.UUID
    host: str
    host_count: int  # all its ports together
    count: int
    is_minimum: bool
    errors: TargetErrors
    examined: int | None = None


def list_retrying_hosts(tenant_id: uuid.UUID | None, *, min_calls: int, limit: int) -> list[RetryingHost]:
    """Return the ports of the hosts for which at least `min_calls` calls of a tenant wait, those with the most calls first."""
    tenants = _list_tenants(min_calls) if tenant_id is None else [tenant_id]
    found = [host for tenant in tenants for host in _sample_tenant(tenant, min_calls)]
    found.sort(key=lambda found: (-found[2], found[1]))
    ports = [
        RetryingHost(
            tenant,
            host,
            count,
            max(1, round(count * target.share)),
            is_minimum,
            target,
            len(calls) if target.share < 1.0 and len(calls) < count else None,
        )
        for tenant, host, count, is_minimum, calls in found[:limit]
        for target in _read_errors(tenant, host, calls)
    ]
    return sorted(ports, key=lambda port: (-port.count, port.errors.name))[:limit]


def _list_tenants(min_calls: int) -> list[uuid.UUID]:
    """Return tenants that have so many waiting calls. It takes one index lookup per tenant."""
    waiting = ServiceCall.objects.for_tenant(OuterRef("pk")).filter(RETRYING)  # type: ignore[arg-type]
    # In the order of the index. PostgreSQL expects so many of them that it would rather scan the table.
    last = Subquery(waiting.order_by("attempt").values("tenant_id")[min_calls - 1 : min_calls])
    tenants = Tenant.objects.annotate(last_waiting=last).filter(last_waiting__isnull=False)
    return list(tenants.order_by("pk").values_list("pk", flat=True)[:MAX_TENANTS_SAMPLED])


def _sample_tenant(
    tenant_id: uuid.UUID, min_calls: int
) -> list[tuple[uuid.UUID, str, int, bool, Sequence[uuid.UUID]]]:
    waiting = ServiceCall.objects.for_tenant(tenant_id).filter(RETRYING)
    ordered = waiting.order_by("attempt", "submitted_at")
    sample = list(ordered.values_list("host", "service_call_id")[:MAX_CALLS_SAMPLED])
    is_cut = len(sample) == MAX_CALLS_SAMPLED
    calls_by_host: defaultdict[str, list[uuid.UUID]] = defaultdict(list)
    for host, service_call_id in sample:
        calls_by_host[host].append(service_call_id)
    return [
        (tenant_id, host, len(calls), is_cut, _sample(calls))
        for host, calls in calls_by_host.items()
        if len(calls) >= min_calls
    ]


def _sample(calls: Sequence[uuid.UUID], size: int = MAX_ERRORS_READ) -> Sequence[uuid.UUID]:
    """Return up to so many of the calls, chosen at random, but the same each time."""
    if len(calls) <= size:
        return calls
    return random.Random(len(calls)).sample(calls, size)  # noqa: S311 (no secret)


class FailedCalls:
    """The latest calls of a tenant that failed, by host."""

    def __init__(self, tenant_id: uuid.UUID, since: datetime) -> None:
        self._tenant_id = tenant_id
        self._by_host: defaultdict[str, list[uuid.UUID]] = defaultdict(list)
        failed = ServiceCall.objects.for_tenant(tenant_id).filter(status=Status.FAILED, due_at__gte=since)
        latest = failed.order_by("-due_at").values_list("host", "service_call_id")
        for host, service_call_id in latest[:MAX_FAILURES_SEARCHED]:
            self._by_host[host].append(service_call_id)

    def list_ports(self, host: str, failed: int, succeeded: int) -> list[PortOutcomes]:
        """Return the ports of the host to which calls failed, those with the most failures first. There is at least one.

        So many calls to the host failed and succeeded. They are counted by host only, so they are divided among the ports
        as the calls that can be read are.
        """
        failed_ids = self._by_host.get(host) or _list_latest(self._tenant_id, host, Status.FAILED)
        read = _sample(failed_ids, MAX_PORTS_READ)
        targets = _read_errors(self._tenant_id, host, read)
        good = _sample_succeeded(self._tenant_id, host)
        if len({target.name for target in targets} | good.keys()) == 1:
            return [PortOutcomes(targets[0], failed, succeeded)]
        are_all_read = (len(read), good.total()) == (failed, succeeded)
        return [
            PortOutcomes(
                target,
                max(1, round(failed * target.share)),
                round(succeeded * good[target.name] / max(1, good.total())),
                None
                if are_all_read
                else ExaminedCalls(
                    len(read), round(len(read) * target.share), good.total(), good[target.name]
                ),
            )
            for target in targets
        ]


def estimate_succeeded(tenant_id: uuid.UUID, host: str, port_name: str, succeeded: int) -> int:
    """Return how many of the calls to the host that succeeded went to the port of this name."""
    good = _sample_succeeded(tenant_id, host) if succeeded else Counter[str]()
    return round(succeeded * good[port_name] / good.total()) if good else succeeded


def _sample_succeeded(tenant_id: uuid.UUID, host: str) -> Counter[str]:
    """Count some of the latest calls to the host that succeeded by the port."""
    sample = _sample(_list_latest(tenant_id, host, Status.SUCCEEDED), MAX_PORTS_READ)
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id__in=sample)
    urls = calls.order_by().values_list(KeyTextTransform("url", "request_spec"), flat=True)
    return Counter(_get_target(url or "", host)[0] for url in urls)


def _list_latest(tenant_id: uuid.UUID, host: str, status: Status) -> list[uuid.UUID]:
    """Return those of the latest calls to the host that have this status. The index has no status, so it is compared here."""
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(host=host).order_by("-submitted_at")
    latest = calls.values_list("service_call_id", "status")[:MAX_CALLS_SEARCHED]
    return [service_call_id for service_call_id, its_status in latest if its_status == status]


def _read_errors(
    tenant_id: uuid.UUID, host: str, service_call_ids: Sequence[uuid.UUID]
) -> list[TargetErrors]:
    """Return the errors of these calls for each port, those with the most calls first."""
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id__in=service_call_ids)
    found: dict[str, _Failures] = {}
    for url, outcome in calls.order_by().values_list(KeyTextTransform("url", "request_spec"), "outcome_meta"):
        name, port = _get_target(url or "", host)
        meta = outcome or {}
        error = (meta.get("errorMeta") or {}).get("kind"), (meta.get("responseMeta") or {}).get("status")
        found.setdefault(name, _Failures(port)).errors[error] += 1
    if not found:
        return [TargetErrors(host, host)]
    total = sum(one.errors.total() for one in found.values())
    targets = [_build_target(name, one, one.errors.total() / total) for name, one in found.items()]
    return sorted(targets, key=lambda target: (-target.share, target.name))


def _build_target(name: str, failures: _Failures, share: float) -> TargetErrors:
    (kind, status), _ = failures.errors.most_common(1)[0]
    # The host alone would list the calls to its other ports, too.
    is_ambiguous = share < 1.0 and failures.port is not None and not name.endswith(f":{failures.port}")
    return TargetErrors(name, f"{name}:{failures.port}" if is_ambiguous else name, share, kind, status)


def _get_target(url: str, host: str) -> tuple[str, int | None]:
    origin = find_origin(url, host)
    return (origin.authority, origin.port) if origin else (host, None)

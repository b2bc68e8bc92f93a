"""The diagnosis of the running system, and every threshold that it goes by.

The console and `manage.py doctor` report these findings, and /readyz uses one of the checks. Both add failing webhook
endpoints, hosts that let calls wait, and tenants at their limits; the dashboard adds failing hosts, and doctor adds checks
of the installation.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.migrations.recorder import MigrationRecorder

from eventservice.db.bounded_count import MAX_COUNTED, format_capped
from eventservice.db.dialects.base import Cause
from eventservice.db.errors import TROUBLES, explain_error
from eventservice.kernel.findings import Finding, Severity
from eventservice.kernel.ids import new_id
from eventservice.kernel.text import end_sentence
from eventservice.kernel.version import get_version
from eventservice.operators.error_kinds import get_error_name
from eventservice.operators.formatting import (
    format_ago,
    format_clock,
    format_count,
    format_duration,
    format_second,
    format_share,
    format_since,
    format_size,
)
from eventservice.tenants.directory import find_tenant_names, list_nearly_full_tenants
from eventservice.tenants.models import LimitCode, LimitRefusal, Tenant
from eventservice.tenants.refusals import list_current_refusals
from orchestration.engine.capacity import get_max_in_flight
from orchestration.statistics.chart_data import (
    FailingHost,
    count_succeeded_by_host,
    list_hosts_with_failures,
)
from orchestration.statistics.hosts_in_trouble import (
    FailedCalls,
    PortOutcomes,
    RetryingHost,
    TargetErrors,
    estimate_succeeded,
    list_retrying_hosts,
)
from orchestration.statistics.in_flight_limits import HeldBackTenant, list_held_back
from orchestration.statistics.live_counts import LiveCounts, has_running_calls, list_overdue_tenants
from orchestration.statistics.usage import read_usage
from outbox.broker_queue import BrokerBacklog
from outbox.models import OutboxPartition, WebhookEndpoint
from outbox.publishers.webhook.recovery import (
    EndpointFailure,
    GoneEndpoint,
    list_failing_endpoints,
    list_gone_endpoints,
)
from outbox.status import OutboxStatus, list_partitions
from timers.membership import NODE_LEASE
from timers.models import Node, NodeRole
from timers.operator_views import Ownership, list_nodes, list_ownerships
from timers.persistence import timer_persistence
from timers.shard_sizes import MAX_ADVISED_TIMERS, ShardSizes

V = TypeVar("V", float, timedelta)

MAX_NAMED_SHARDS = 5
MAX_NAMED_NODES = 3
MAX_FAILING_HOSTS = 5
# Hosts whose ports are looked at: more than are reported, because a port that works may hide one that does not.
MAX_EXAMINED_HOSTS = 10
MAX_FAILING_ENDPOINTS = 5
MAX_NAMED_LIMITS = 10
MAX_NAMED_LIMITED = 3


@dataclass(frozen=True, slots=True)
class Threshold(Generic[V]):
    """The value above which something deserves a warning, and the one above which it is an error."""

    warning: V
    error: V

    def rate(self, value: V) -> Severity:
        if value > self.error:
            return Severity.ERROR
        return Severity.WARNING if value > self.warning else Severity.OK


# Due calls start within milliseconds, and events are published within a second.
OVERDUE = Threshold(timedelta(seconds=10), timedelta(minutes=1))
OUTBOX_LAG = Threshold(timedelta(seconds=10), timedelta(minutes=1))
START_DELAY_MS = Threshold(1_000.0, 10_000.0)  # the 95th percentile
FAILED_SHARE = Threshold(0.05, 0.2)  # of the calls that ended
# Calls that are due for so long while no call is running are not being started.
NOT_STARTED_AFTER = timedelta(seconds=20)
LOOKS_FOR_RUNNING_CALLS, PAUSE_BETWEEN_LOOKS_SECONDS = 3, 0.1
# A cluster that has not run for so long has been given up or renamed.
FORGOTTEN_AFTER = timedelta(days=7)
# A host is failing if, of the calls to it that ended lately, at least so many and this share failed.
FAILING_HOST_PERIOD = timedelta(minutes=15)
MIN_FAILED_CALLS = 3
MIN_FAILED_SHARE = 0.25
# A host lets calls wait if at least so many wait for another attempt, and this share of those and of the calls that
# succeeded lately.
MIN_RETRYING_CALLS = 10
MIN_RETRYING_SHARE = 0.25
# A tenant that was refused something for its pending limit, and uses less than this share of it now, has room again.
MAX_SHARE_WITH_ROOM = 0.5
# A tenant that stores more than this share of what it may needs attention before anything is refused.
HIGH_STORED_SHARE = 0.9

ROLES = {
    NodeRole.ENGINE: "calls are accepted and stored, but not sent",
    NodeRole.DISPATCHER: "events are stored, but neither published nor sent to webhooks",
}
START_COMMANDS = {NodeRole.ENGINE: "poll_timers", NodeRole.DISPATCHER: "dispatch_outbox"}
# How long a process needs to take over what it may.
TAKEOVER_MARGIN = timedelta(seconds=5)
MISSING_ROLES = {role.value for role in ROLES}
# Without writing there are no heartbeats and no leases, and nothing is started or published.
CONSEQUENCES = MISSING_ROLES | {
    "dead_node", "unowned_shards", "unowned_partitions", "stalled_chain", "stopped_cluster", "stuck_shards", "overdue_calls",
    "waiting_events",
}  # fmt: skip
ROLE_NAMES = {NodeRole.LEAVING.value: "stopping engine", NodeRole.STANDBY.value: "standby worker"}


class HasLease(Protocol):
    owner_id: uuid.UUID | None
    lease_until: datetime | None


class Chain(HasLease, Protocol):
    """A chain of slices of a cluster, with the lease of a role (eventservice.runtime.models.Slot)."""

    name: str
    taken_at: datetime | None


@dataclass(frozen=True, slots=True)
class ClusterRole:
    """A role of a cluster: who plays it, until when, and who stands by for it."""

    cluster: str
    role: str
    chain: Chain
    is_held: bool
    # The process that plays it, if it has joined already.
    holder: Node | None
    standbys: Sequence[Node]
    # Whether any process of this cluster is alive.
    is_running: bool

    @property
    def has_crashed(self) -> bool:
        """Whether the last process that played the role ended without giving it back, or because its cluster crashed.

        Only a process that stops as it should clears the end of its lease.
        """
        return not self.is_held and self.chain.lease_until is not None


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The nodes that run, and what each of them owns, at one instant."""

    now: datetime
    nodes: Sequence[Node]
    ownerships: Sequence[Ownership]
    partitions: Sequence[OutboxPartition]
    chains: Sequence[Chain]

    def count_live(self, role: NodeRole) -> int:
        return self.live_roles[role.value]

    @property
    def engines(self) -> int:
        return self.count_live(NodeRole.ENGINE)

    @property
    def dispatchers(self) -> int:
        return self.count_live(NodeRole.DISPATCHER)

    @property
    def live_roles(self) -> Counter[str]:
        return Counter(node.role for node in self.nodes if node.is_alive(self.now))

    @property
    def roles(self) -> list[ClusterRole]:
        return [self._describe_role(chain) for chain in self.chains]

    def _describe_role(self, chain: Chain) -> ClusterRole:
        cluster, _, role = chain.name.rpartition("/")
        nodes = [node for node in self.nodes if node.cluster == cluster and node.is_alive(self.now)]
        held = self.is_held(chain)
        playing = [node for node in nodes if node.role == role]
        return ClusterRole(
            cluster,
            role,
            chain,
            held,
            playing[-1] if held and playing else None,
            [node for node in nodes if node.role == NodeRole.STANDBY],
            bool(nodes),
        )

    @property
    def in_flight(self) -> int:
        return sum(node.in_flight for node in self.nodes)

    @property
    def shards(self) -> int:
        return sum(group.shards for group in self.ownerships)

    @property
    def unowned_shards(self) -> int:
        return sum(group.shards for group in self.ownerships if group.owner_id is None)

    @property
    def unowned_partitions(self) -> int:
        return sum(not self.is_held(partition) for partition in self.partitions)

    def get_leases_changed_at(self, role: NodeRole) -> datetime | None:
        """Return when the leases that the nodes of this role hold were last claimed, renewed, released or taken away."""
        shards = (group.last_updated_at for group in self.ownerships)
        partitions = (partition.updated_at for partition in self.partitions)
        return max(filter(None, shards if role == NodeRole.ENGINE else partitions), default=None)

    def is_held(self, lease: HasLease) -> bool:
        """Return whether somebody owns this lease: up to and including its last instant."""
        return lease.owner_id is not None and lease.lease_until is not None and lease.lease_until >= self.now


@dataclass(frozen=True, slots=True)
class WritingFinding(Finding):
    """Whether the database can be written to, and whether a lock of another process is why it cannot."""

    is_locked: bool = False


@dataclass(frozen=True, slots=True)
class FailingHostFinding(Finding):
    """A target that fails, with what a page needs to list its failed calls."""

    tenant_id: uuid.UUID | None = None
    host: str = ""
    share: float = 0.0
    since: datetime | None = field(default=None)


@dataclass(frozen=True, slots=True)
class RetryingHostFinding(Finding):
    """A host that lets calls wait for another attempt, with what a page needs to list them."""

    tenant_id: uuid.UUID | None = None
    host: str = ""


@dataclass(frozen=True, slots=True)
class FailingEndpointFinding(Finding):
    """A webhook endpoint that fails or has disabled itself, with what a page needs to link to it."""

    tenant_id: uuid.UUID | None = None
    endpoint_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class LimitFinding(Finding):
    """A tenant that is at one of its limits, with what a page needs to link to it."""

    tenant_id: uuid.UUID | None = None


def read_cluster(now: datetime, chains: Iterable[Chain]) -> ClusterState:
    """Read who runs and owns what. Clusters that have not run for FORGOTTEN_AFTER are left out."""
    current = [chain for chain in chains if chain.taken_at is None or now - chain.taken_at < FORGOTTEN_AFTER]
    return ClusterState(now, list_nodes(), list_ownerships(), list_partitions(), current)


def diagnose(cluster: ClusterState, pulse: LiveCounts, outbox: OutboxStatus) -> list[Finding]:
    """Return every finding on the running system, also those that are OK."""
    return [
        *check_cluster(cluster),
        check_stuck_shards(cluster),
        check_overdue(pulse.overdue, pulse.oldest_overdue, cluster),
        check_lost_calls(pulse.lost_count),
        check_outbox_lag(outbox),
        check_parked_events(outbox),
        *check_brokers(outbox),
    ]


def select_problems(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that are not OK, errors first."""
    problems = [finding for finding in findings if not finding.is_ok]
    return sorted(problems, key=lambda finding: finding.severity.rank, reverse=True)


def blame_database(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings. If a role is missing because the database cannot be written, that replaces its consequences."""
    found = list(findings)
    if all(finding.is_ok for finding in found if finding.code in MISSING_ROLES):
        return found
    writing = check_writing()
    if writing.is_ok:
        return found
    return [writing, *(finding for finding in found if finding.code not in CONSEQUENCES)]


# --- who runs, who owns what ----------------------------------------------------------------------------------


def check_cluster(cluster: ClusterState) -> list[Finding]:
    return [
        *(
            check_role(
                cluster.nodes,
                role,
                cluster.now,
                chains=cluster.chains,
                leases_changed_at=cluster.get_leases_changed_at(role),
            )
            for role in ROLES
        ),
        *_check_nodes(cluster),
        *_check_versions(cluster),
        *_check_owners(cluster),
        *_check_standbys(cluster),
        *_check_chains(cluster),
        *_check_stopped_clusters(cluster),
    ]


def check_writing() -> WritingFinding:
    """Write a row and delete it again, durably: a full disk is noticed when a transaction is committed."""
    recorder = MigrationRecorder(connection)
    try:
        if not recorder.has_table():
            text = "The database has no tables yet."
            return WritingFinding("writing", Severity.ERROR, text, "Run `manage.py migrate`.")
        with transaction.atomic():
            recorder.migration_qs.create(app="eventservice", name=f"write probe {new_id()}").delete()
    except DatabaseError as error:
        trouble = explain_error(error)
        detail = " ".join(str(error).split())
        return WritingFinding(
            code="writing",
            severity=Severity.ERROR,
            text=f"{trouble.text} ({detail})",
            remedy=trouble.remedy,
            is_locked=trouble == TROUBLES[Cause.LOCKED],
        )
    return WritingFinding("writing", Severity.OK, "wrote a row and deleted it")


def check_role(
    nodes: Iterable[Node],
    role: NodeRole,
    now: datetime,
    *,
    chains: Iterable[Chain] = (),
    leases_changed_at: datetime | None = None,
) -> Finding:
    """Report that nobody plays the role, and since when, as far as it is known.

    It is known from dead nodes, and from the time at which the leases of the role's shards or partitions were last claimed,
    renewed or released. These chains say who may take over.
    """
    nodes = list(nodes)
    of_role = [node for node in nodes if node.role == role]
    count = sum(node.is_alive(now) for node in of_role)
    if count:
        return Finding(role.value, Severity.OK, f"{format_count(count, role.value)} running.")
    text = f"No {role.value} is running: {ROLES[role]}."
    chains = [chain for chain in chains if chain.name.endswith(f"/{role.value}")]
    ended = [*(node.lease_until for node in of_role), *filter(None, (leases_changed_at,))]
    last_seen = max(ended or [chain.taken_at for chain in chains if chain.taken_at], default=None)
    if last_seen is not None and last_seen <= now:
        text += f" It has been so {format_since(last_seen, now)}."
    return Finding(role.value, Severity.ERROR, text, _describe_successor(nodes, role, now, chains))


def _describe_successor(nodes: Sequence[Node], role: NodeRole, now: datetime, chains: Sequence[Chain]) -> str:
    """Return the one instruction for a missing role: until when to wait for another process that takes it over, or which
    command to run."""
    live = [node for node in nodes if node.is_alive(now)]
    if standbys := [node for node in live if node.role == NodeRole.STANDBY]:
        names = {f"{node.cluster}/{role.value}" for node in standbys}
        ends = [chain.lease_until for chain in chains if chain.name in names and chain.lease_until]
        until = max([now, *ends]) + TAKEOVER_MARGIN
        who = f"{format_count(len(standbys), 'standby worker')} waiting: one takes over"
        return f"Wait until {until:%H:%M:%S} UTC: {who}. If nobody has by then, restart the cluster."
    clusters = {node.cluster for node in live if node.cluster}
    dead = [node for node in nodes if node.role == role and node.cluster in clusters]
    if not dead:
        return f"Start one with `manage.py cluster` (or `manage.py {START_COMMANDS[role]}`)."
    name = dead[-1].cluster
    # A worker that has frozen is replaced when it has made no progress for so long; it was alive a lease before.
    frozen = timedelta(seconds=settings.FROZEN_SECONDS) - NODE_LEASE
    until = max(node.lease_until for node in dead) + frozen + TAKEOVER_MARGIN
    if until < now:
        return f"Restart the cluster {name}, which is running and has not replaced it."
    return (
        f"Wait until {until:%H:%M:%S} UTC: the cluster {name} is running and replaces it. If it has not by then, restart "
        "that cluster."
    )


def describe_node(node: Node) -> str:
    """Return a node as it is called in a sentence: "the engine on host-1 (process 123)"."""
    return f"the {ROLE_NAMES.get(node.role, node.role)} on {node.hostname} (process {node.process_id})"


def describe_state(node: Node, now: datetime) -> str:
    """Return the state of a node in a word."""
    if not node.is_alive(now):
        return "dead"
    return {NodeRole.LEAVING.value: "stopping", NodeRole.STANDBY.value: "waiting"}.get(node.role, "live")


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _check_nodes(cluster: ClusterState) -> Iterator[Finding]:
    dead = [node for node in cluster.nodes if not node.is_alive(cluster.now)]
    for node in dead[:MAX_NAMED_NODES]:
        text = f"{_capitalize(describe_node(node))} has stopped sending heartbeats."
        if node.lease_until <= cluster.now:
            text += f" Its lease is over {format_since(node.lease_until, cluster.now)}."
        yield Finding("dead_node", Severity.WARNING, text, _describe_takeover(node, cluster))
    if len(dead) > MAX_NAMED_NODES:
        text = f"{format_count(len(dead) - MAX_NAMED_NODES, 'other node')} stopped sending heartbeats."
        yield Finding("dead_node", Severity.WARNING, text, "See the list of nodes.")


def _check_versions(cluster: ClusterState) -> Iterator[Finding]:
    """Report processes that run other code than this one: left over from before an upgrade, or newer."""
    others = [node for node in cluster.nodes if node.is_alive(cluster.now) and node.version != get_version()]
    for node in others[:MAX_NAMED_NODES]:
        text = (
            f"{_capitalize(describe_node(node))} runs version"
            f" {node.version or 'unknown'} of the code, this process {get_version()} (a hash of its files)."
        )
        remedy = "Restart it with the current code. If it is newer than this process, restart this one."
        yield Finding("other_version", Severity.WARNING, text, remedy)
    if len(others) > MAX_NAMED_NODES:
        text = f"{format_count(len(others) - MAX_NAMED_NODES, 'other node')} run another version of the code."
        yield Finding("other_version", Severity.WARNING, text, "See the list of nodes.")


def _describe_takeover(node: Node, cluster: ClusterState) -> str:
    if node.role == NodeRole.STANDBY:
        return "It held nothing. An engine removes it from this list."
    if node.role == NodeRole.DISPATCHER and cluster.dispatchers:
        return "Another dispatcher takes over its partitions. An engine removes it from this list."
    if node.role != NodeRole.DISPATCHER and cluster.engines:
        return "Another engine takes over its shards and calls within seconds."
    role = NodeRole.DISPATCHER if node.role == NodeRole.DISPATCHER else NodeRole.ENGINE
    return f"“No {role.value} is running” says what to do."


def _check_owners(cluster: ClusterState) -> Iterator[Finding]:
    if cluster.engines and cluster.unowned_shards:
        text = f"{cluster.unowned_shards} of {cluster.shards} shards have no owner; their timers wait."
        yield Finding("unowned_shards", Severity.WARNING, text, "The engines claim them within seconds.")
    if cluster.dispatchers and cluster.unowned_partitions:
        count = format_count(cluster.unowned_partitions, "outbox partition")
        text = f"{count} without an owner; their events wait."
        remedy = "The dispatchers claim them within seconds."
        yield Finding("unowned_partitions", Severity.WARNING, text, remedy)


def _check_standbys(cluster: ClusterState) -> Iterator[Finding]:
    """Name the workers that wait for a role, and what they wait for. It is no problem: they may be meant as standbys."""
    by_cluster: dict[str, list[ClusterRole]] = {}
    for role in cluster.roles:
        by_cluster.setdefault(role.cluster, []).append(role)
    for name, roles in by_cluster.items():
        if standbys := roles[0].standbys:
            count = format_count(len(standbys), "worker")
            hosts = ", ".join(sorted({node.hostname for node in standbys}))
            verb = "stands" if len(standbys) == 1 else "stand"
            held = "; ".join(describe_holder(role, cluster.now) for role in roles)
            text = f"{count} of cluster {name} {verb} by on {hosts}: {held}."
            remedy = "To let them work beside the others, restart them with a CLUSTER_NAME of their own."
            yield Finding("standby", Severity.OK, text, remedy)


def describe_holder(role: ClusterRole, now: datetime) -> str:
    """Return who plays a role, and until when: "engine held by host-1 (process 123) until 12:00:08 UTC"."""
    until = role.chain.lease_until
    if not role.is_held or until is None:
        return f"{role.role} free"
    who = (
        f"{role.holder.hostname} (process {role.holder.process_id})"
        if role.holder
        else "a process that starts"
    )
    return f"{role.role} held by {who} until {until:%H:%M:%S} UTC, and longer while it works"


def _check_chains(cluster: ClusterState) -> Iterator[Finding]:
    pause = timedelta(seconds=3 * settings.SLICE_SECONDS + settings.SHUTDOWN_SECONDS)
    for role in cluster.roles:
        taken_at = role.chain.taken_at
        if role.is_running and taken_at is not None and cluster.now - taken_at > pause:
            yield Finding(
                "stalled_chain",
                Severity.WARNING,
                f"The chain {role.chain.name} has stalled: the workers of this cluster have begun no slice of it "
                f"{format_since(taken_at, cluster.now)}.",
                "The cluster restarts it within a minute. If it does not, restart the cluster.",
            )


def _check_stopped_clusters(cluster: ClusterState) -> Iterator[Finding]:
    """Report clusters that ended without giving their roles back, while others do their work."""
    crashed: dict[str, datetime] = {}
    for role in cluster.roles:
        ended_at = role.chain.lease_until
        if role.has_crashed and not role.is_running and ended_at is not None:
            crashed[role.cluster] = max(ended_at, crashed.get(role.cluster, ended_at))
    for name, ended_at in crashed.items():
        if cluster.engines or cluster.dispatchers:
            yield Finding(
                "stopped_cluster",
                Severity.WARNING,
                f"The cluster {name} has not run {format_since(ended_at, cluster.now)}, and was not stopped gracefully.",
                f"Start it with `CLUSTER_NAME={name} manage.py cluster`. If it was given up, ignore this: it is forgotten "
                f"after {FORGOTTEN_AFTER.days} days, or when it is started and stopped once more.",
            )


def check_shard_sizes(sizes: ShardSizes) -> Finding:
    """Report shards with more scheduled timers than docs/timers.md advises."""
    if sizes.largest_shard is None:
        return Finding("shard_sizes", Severity.OK, "The timers of the shards have not been counted yet.")
    largest = f"{sizes.max_timers:,} in shard {sizes.largest_shard}"
    if not sizes.above_advice:
        return Finding("shard_sizes", Severity.OK, f"The shard with the most scheduled timers: {largest}.")
    verb = "has" if sizes.above_advice == 1 else "have"
    return Finding(
        "shard_sizes",
        Severity.WARNING,
        f"{format_count(sizes.above_advice, 'shard')} {verb} more than {MAX_ADVISED_TIMERS:,} scheduled timers: {largest}.",
        "Schedule further timers in a namespace with more shards, because those of an existing one cannot be changed.",
    )


def check_stuck_shards(cluster: ClusterState) -> Finding:
    """Report shards that nobody owns although their timers are overdue and engines are running."""
    if not cluster.engines:
        # It is no trouble of the shards, and `check_role` says what to do.
        return Finding("stuck_shards", Severity.OK, "Not checked, because no engine is running.")
    now = cluster.now
    stuck = timer_persistence.list_stuck_shards(now - OVERDUE.warning, now)
    if not stuck:
        return Finding("stuck_shards", Severity.OK, "No shard is stuck.")
    named = ", ".join(str(shard.shard_id) for shard in stuck[:MAX_NAMED_SHARDS])
    more = f" and {len(stuck) - MAX_NAMED_SHARDS} more" if len(stuck) > MAX_NAMED_SHARDS else ""
    oldest = format_duration(now - stuck[0].first_due)
    verb = "is" if len(stuck) == 1 else "are"
    text = f"{format_count(len(stuck), 'shard')} {verb} stuck: no live owner, and timers overdue by up to {oldest}."
    remedy = f"Check that the engines can reach the database. Shard {named}{more}."
    return Finding("stuck_shards", Severity.ERROR, text, remedy)


# --- work that waits ------------------------------------------------------------------------------------------


def check_overdue(count: int, oldest: timedelta, cluster: ClusterState) -> Finding:
    """Report calls that should have been started, with the tenants and hosts whose limits hold them back."""
    severity = OVERDUE.rate(oldest) if count else Severity.OK
    if severity is Severity.OK:
        text = f"{format_capped(count)} due, none for more than {format_duration(OVERDUE.warning)}."
        return Finding("overdue_calls", severity, text)
    verb = "call is" if count == 1 else "calls are"
    return Finding(
        "overdue_calls",
        severity,
        f"{format_capped(count)} {verb} overdue, the oldest by {format_duration(oldest)}.",
        _explain_overdue(cluster),
    )


def _explain_overdue(cluster: ClusterState) -> str:
    if not cluster.engines:
        return "No engine is running."
    held_back = list_held_back(None, cluster.now - OVERDUE.warning, cluster.engines)
    if not held_back:
        return (
            "No tenant with overdue calls is at its in-flight limit. The engines may be too busy, or have just begun to catch "
            f"up. A host may also be at ENGINE_PER_HOST ({settings.ENGINE_PER_HOST:,}). Otherwise start more engines."
        )
    reasons = [_describe_limit(one) for one in held_back[:MAX_NAMED_LIMITED]]
    if len(held_back) > MAX_NAMED_LIMITED:
        reasons.append(f"{len(held_back) - MAX_NAMED_LIMITED} more tenants are at their limits.")
    return (
        f"{' '.join(reasons)} If the receiver can take more, raise the limit: `manage.py tenant limits "
        f"{held_back[0].tenant.name} --max-in-flight NUMBER`."
    )


def _describe_limit(one: HeldBackTenant) -> str:
    if not one.host:
        return f"{one.tenant.name} is at its in-flight limit: {one.running:,} calls of {one.limit:,} are running."
    return (
        f"{one.host} has as many calls of {one.tenant.name} in flight as one host may: {one.host_running:,}, of an in-flight "
        f"limit of {one.limit:,}. One host gets at most three quarters of it, and less while others use it."
    )


def check_starting(now: datetime) -> Finding:
    """Report that due calls are not being started, whatever the reason.

    A tenant or host at its limit has calls that run, and a tenant whose secret cannot be read holds up only itself.
    """
    tenants = [
        tenant for tenant in list_overdue_tenants(now - NOT_STARTED_AFTER) if get_max_in_flight(tenant)
    ]
    # Between two batches of short calls nothing runs for a moment.
    if not tenants or any(_sees_running_call(attempt) for attempt in range(LOOKS_FOR_RUNNING_CALLS)):
        return Finding("starting", Severity.OK, "Due calls are being started.")
    return Finding(
        "starting",
        Severity.ERROR,
        f"Calls have been due for more than {format_duration(NOT_STARTED_AFTER)}, and none is running: nothing starts them.",
        "See the log of the engines. If there is no reason in it, restart them, and check whether the database's clock has "
        "been set.",
    )


def _sees_running_call(attempt: int) -> bool:
    if attempt:
        time.sleep(PAUSE_BETWEEN_LOOKS_SECONDS)
    return has_running_calls()


def check_lost_calls(count: int) -> Finding:
    if not count:
        return Finding("lost_calls", Severity.OK, "No running call is past its deadline.")
    verb = "call is" if count == 1 else "calls are"
    return Finding(
        "lost_calls",
        Severity.ERROR,
        f"{format_capped(count)} running {verb} past the deadline.",
        "A running engine resolves them within seconds. If none can run, use `manage.py requeue_stuck`.",
    )


def check_outbox_lag(outbox: OutboxStatus) -> Finding:
    severity = OUTBOX_LAG.rate(outbox.lag)
    if severity is Severity.OK:
        return Finding(
            "waiting_events", severity, f"{format_count(outbox.unpublished, 'unpublished event')}."
        )
    count = format_count(outbox.unpublished, "event")
    text = f"{count} unpublished, the oldest for {format_duration(outbox.lag)}."
    remedy = "If a dispatcher is running, its log says why. `manage.py outbox status` lists the dispatchers."
    return Finding("waiting_events", severity, text, remedy)


def check_parked_events(outbox: OutboxStatus) -> Finding:
    if not outbox.parked:
        return Finding("parked_events", Severity.OK, "No event is parked.")
    behind = f"; {outbox.waiting_behind_parked:,} wait behind" if outbox.waiting_behind_parked else ""
    verb = "event is" if outbox.parked == 1 else "events are"
    return Finding(
        "parked_events",
        Severity.ERROR,
        f"{outbox.parked:,} {verb} parked: rejected by a publisher, or parked by an operator{behind}.",
        "Retry or skip them on the Events page, or with `manage.py outbox`.",
    )


# --- tenants at their limits ------------------------------------------------------------------------------------


def check_tenant_limits(tenant_id: uuid.UUID | None, now: datetime) -> list[Finding]:
    """Return a finding for each limit for which a tenant is being refused, and for each tenant whose storage is nearly
    full, or one that is OK.

    A refusal for the pending limit is over when there is much room again, because the limit was raised or calls have ended.
    """
    refusals = list_current_refusals(tenant_id, now, MAX_NAMED_LIMITS)
    full = {refusal.tenant_id for refusal in refusals if refusal.code == LimitCode.STORAGE}
    nearly_full = list_nearly_full_tenants(tenant_id, HIGH_STORED_SHARE, MAX_NAMED_LIMITS)
    found = [
        *filter(None, (_build_refusal_finding(refusal, now) for refusal in refusals)),
        *(_build_storage_finding(tenant) for tenant in nearly_full if tenant.pk not in full),
    ]
    return [*found[:MAX_NAMED_LIMITS]] or [Finding("tenant_limits", Severity.OK, "No tenant is at a limit.")]


def _build_refusal_finding(refusal: LimitRefusal, now: datetime) -> LimitFinding | None:
    tenant, code = refusal.tenant, LimitCode(refusal.code)
    limit = getattr(tenant, code.column)
    present = f" The limit is {limit:,}."
    if code == LimitCode.PENDING:
        pending = read_usage(tenant).pending
        if pending < MAX_SHARE_WITH_ROOM * limit:
            return None
        present = f" Now: {pending:,} of {limit:,}."
    elif code == LimitCode.STORAGE:
        present = f" Now: {format_size(tenant.stored_bytes)} of {format_size(limit)}, as last measured."
    times = "once" if refusal.count == 1 else f"{refusal.count:,} times"
    if refusal.last_at - refusal.since >= timedelta(minutes=1):
        times += f" since {format_clock(refusal.since, now)}"
    return LimitFinding(
        code="tenant_limits",
        severity=Severity.WARNING,
        text=f"{tenant.name} was refused {times} for its {code.label}, last at {format_clock(refusal.last_at, now)}.{present}",
        remedy=f"{_REMEDIES[code]} `manage.py tenant limits {tenant.name}` shows and changes the limits. The web log has "
        f"each refused request, with the code {code}.",
        tenant_id=tenant.pk,
    )


_REMEDIES = {
    LimitCode.REQUESTS: "Ask who sends so many requests, or raise the limit.",
    LimitCode.BYTES: "Ask who sends so much, or raise the limit.",
    LimitCode.PENDING: "If its calls are overdue, find out why they are not sent. Otherwise it schedules more than it may: "
    "cancel calls, or raise the limit.",
    LimitCode.STORAGE: "Delete old calls with `manage.py prune`, or raise the limit.",
}


def _build_storage_finding(tenant: Tenant) -> LimitFinding:
    share = format_share(tenant.stored_bytes / tenant.max_stored_bytes) if tenant.max_stored_bytes else "all"
    return LimitFinding(
        code="tenant_limits",
        severity=Severity.WARNING,
        text=f"{tenant.name} stores {share} of the {tenant.max_stored_bytes:,} bytes that it may.",
        remedy=f"At the limit, its submissions are refused. {_REMEDIES[LimitCode.STORAGE]}",
        tenant_id=tenant.pk,
    )


def check_brokers(outbox: OutboxStatus) -> list[Finding]:
    """Return a finding for each broker for which events wait, or one that is OK."""
    names = {spec.name for spec in settings.PUBLISHERS}
    found = [_check_broker(backlog, backlog.publisher in names) for backlog in outbox.broker_backlogs]
    return found or [Finding("waiting_for_broker", Severity.OK, "No event waits for a broker.")]


def _check_broker(backlog: BrokerBacklog, is_used: bool) -> Finding:
    count = format_count(backlog.count, "event")
    text = f"{count} for the publisher {backlog.publisher}, the oldest for {format_duration(backlog.lag)}."
    if not is_used:
        return Finding(
            "waiting_for_broker",
            Severity.WARNING,
            text,
            f"PUBLISHERS no longer names it. Add it again, or run `manage.py outbox discard {backlog.publisher}`.",
        )
    severity = OUTBOX_LAG.rate(backlog.lag)
    if severity is Severity.OK:
        return Finding("waiting_for_broker", severity, text)
    error = f" {backlog.last_error}" if backlog.last_error else ""
    return Finding(
        "waiting_for_broker", severity, f"{text}{error}", "The events are kept until the broker accepts them."
    )


# --- targets --------------------------------------------------------------------------------------------------


def list_failing_hosts(tenant_id: uuid.UUID | None, now: datetime) -> list[FailingHostFinding]:
    """Return the ports of hosts to which many calls failed lately, those with the largest share of failures first.

    Each port is judged by numbers of its own, so that one that works hides none that does not.
    """
    since = now - FAILING_HOST_PERIOD
    hosts = list_hosts_with_failures(
        tenant_id, since, now, min_failed=MIN_FAILED_CALLS, limit=MAX_EXAMINED_HOSTS
    )
    names = find_tenant_names([host.tenant_id for host in hosts]) if hosts else {}
    failed_calls = {tenant: FailedCalls(tenant, since) for tenant in {host.tenant_id for host in hosts}}
    found = [
        _build_failing_host(host, port, names.get(host.tenant_id, ""), since)
        for host in hosts
        for port in _list_failing_ports(failed_calls[host.tenant_id], host)
    ]
    return sorted(found, key=lambda finding: -finding.share)[:MAX_FAILING_HOSTS]


def _list_failing_ports(failed_calls: FailedCalls, host: FailingHost) -> list[PortOutcomes]:
    failed, succeeded = host.outcomes.failed, host.outcomes.succeeded
    ports = failed_calls.list_ports(host.host, failed, succeeded)
    is_failing = failed >= MIN_FAILED_SHARE * (failed + succeeded)
    min_failed = 1 if is_failing else MIN_FAILED_CALLS
    failing = [port for port in ports if port.failed >= min_failed and port.share >= MIN_FAILED_SHARE]
    if is_failing and not failing:
        # The estimates are too rough to name a port.
        errors = replace(ports[0].errors, name=host.host, filter_value=host.host)
        return [PortOutcomes(errors, failed, succeeded)]
    return failing


def _build_failing_host(
    host: FailingHost, port: PortOutcomes, tenant: str, since: datetime
) -> FailingHostFinding:
    about = "About " if port.is_estimate else ""
    return FailingHostFinding(
        code="failing_host",
        severity=Severity.WARNING if port.succeeded else Severity.ERROR,
        text=f"{_name_target(port.errors)} is failing for {tenant or host.tenant_id}.",
        remedy=f"{about}{port.failed:,} of {port.failed + port.succeeded:,} calls failed in the last 15 minutes "
        f"({format_share(port.share)}).{_name_error('The most frequent error', port.errors)}",
        tenant_id=host.tenant_id,
        host=port.errors.filter_value,
        share=port.share,
        since=since,
    )


def check_retrying_calls(tenant_id: uuid.UUID | None, now: datetime) -> list[Finding]:
    """Return a finding for each host that lets many calls wait for another attempt, or one that is OK."""
    found = list_retrying_hosts(tenant_id, min_calls=MIN_RETRYING_CALLS, limit=2 * MAX_FAILING_HOSTS)
    succeeded = count_succeeded_by_host(
        [(one.tenant_id, one.host) for one in found], now - FAILING_HOST_PERIOD, now
    )
    failing = [one for one in found if _lets_wait(one, succeeded.get((one.tenant_id, one.host), 0))]
    if not failing:
        return [Finding("retrying_calls", Severity.OK, "No host lets many calls wait for another attempt.")]
    names = find_tenant_names([one.tenant_id for one in failing])
    return [_build_retrying_host(one, names.get(one.tenant_id, "")) for one in failing[:MAX_FAILING_HOSTS]]


def _lets_wait(one: RetryingHost, succeeded: int) -> bool:
    """Return whether a port lets a large share of its calls wait, if so many calls to all ports of the host succeeded."""
    if one.host_count >= MIN_RETRYING_SHARE * (one.host_count + succeeded):
        return True
    own = estimate_succeeded(one.tenant_id, one.host, one.errors.name, succeeded)
    return one.count >= MIN_RETRYING_CALLS and one.count >= MIN_RETRYING_SHARE * (one.count + own)


def _build_retrying_host(one: RetryingHost, tenant: str) -> RetryingHostFinding:
    count = f"more than {MAX_COUNTED:,}" if one.count > MAX_COUNTED else f"{one.count:,}"
    about = "about " if one.is_estimate and one.count <= MAX_COUNTED else ""
    return RetryingHostFinding(
        code="retrying_calls",
        severity=Severity.WARNING,
        text=f"Calls of {tenant or one.tenant_id} to {_name_target(one.errors)} keep failing: "
        f"{about}{count} wait for another attempt.",
        remedy=f"They are retried by their policies.{_name_error('The most frequent error', one.errors)} Check the "
        "receiver. Once it works, you can run them now.",
        tenant_id=one.tenant_id,
        host=one.errors.filter_value,
    )


def _name_target(target: TargetErrors) -> str:
    return target.name or "A host without a name"


def _name_error(label: str, errors: TargetErrors) -> str:
    name = get_error_name(errors.kind, errors.response_status)
    return f" {label}: {name}." if name else ""


def check_webhook_endpoints(tenant_id: uuid.UUID | None, now: datetime) -> list[Finding]:
    """Return a finding for each webhook endpoint that keeps failing or is disabled by its own answer, of one tenant or of
    all, and one that is OK if none keeps failing."""
    failures = list_failing_endpoints(tenant_id, MAX_FAILING_ENDPOINTS, MAX_COUNTED)
    gone = list_gone_endpoints(tenant_id, MAX_FAILING_ENDPOINTS)
    endpoints = [*(failure.endpoint for failure in failures), *(found.endpoint for found in gone)]
    names = find_tenant_names([endpoint.tenant_id for endpoint in endpoints])
    failing: list[Finding] = [
        _build_failing_endpoint(failure, names.get(failure.endpoint.tenant_id, ""), now)
        for failure in failures
    ]
    return [
        *(failing or [Finding("failing_endpoint", Severity.OK, "No webhook endpoint is failing.")]),
        *(_build_gone_endpoint(found, names.get(found.endpoint.tenant_id, "")) for found in gone),
    ]


def _build_gone_endpoint(gone: GoneEndpoint, tenant: str) -> FailingEndpointFinding:
    at = f" at {format_second(gone.disabled_at)}" if gone.disabled_at else ""
    since = gone.disabled_at or gone.endpoint.created_at
    were = "delivery was" if gone.given_up == 1 else "deliveries were"
    return _build_endpoint_finding(
        "disabled_endpoint",
        gone.endpoint,
        tenant,
        f"was disabled{at} because it answered 410 Gone; {gone.given_up:,} {were} given up.",
        "If its receiver is back, enable it and use Resend failed (`manage.py webhook enable "
        f"{gone.endpoint.endpoint_id}`, then `webhook retry --failed`). Later events: `manage.py outbox replay --since "
        f"{since:%Y-%m-%dT%H:%M:%SZ} --tenant {tenant}`. Otherwise delete the endpoint.",
    )


def _build_failing_endpoint(failure: EndpointFailure, tenant: str, now: datetime) -> FailingEndpointFinding:
    if failure.accepted_at:
        still = "delivery still waits" if failure.pending == 1 else "deliveries still wait"
        return _build_endpoint_finding(
            "failing_endpoint",
            failure.endpoint,
            tenant,
            f"is recovering: it accepted a delivery {format_ago(failure.accepted_at, now)}, "
            f"{format_capped(failure.pending)} {still}.",
            "They are sent by themselves within 6 hours. To send them now, use Retry now on its page, or `manage.py "
            f"webhook retry {failure.endpoint.endpoint_id}`. The last error of those that failed: "
            f"{end_sentence(failure.reason)}",
        )
    wait = "delivery waits" if failure.pending == 1 else "deliveries wait"
    return _build_endpoint_finding(
        "failing_endpoint",
        failure.endpoint,
        tenant,
        f"is failing: {format_capped(failure.pending)} {wait}, the oldest failing one for "
        f"{format_duration(now - failure.since)}.",
        f"Its last error: {end_sentence(failure.reason)} Deliveries are retried; correct the receiver, or disable the endpoint.",
    )


def _build_endpoint_finding(
    code: str, endpoint: WebhookEndpoint, tenant: str, what: str, remedy: str
) -> FailingEndpointFinding:
    """Return the warning whose text names the endpoint and goes on with `what`."""
    # The rest of the URL may be secret.
    authority = urlsplit(endpoint.url).netloc.rpartition("@")[2]
    return FailingEndpointFinding(
        code=code,
        severity=Severity.WARNING,
        text=f"The webhook endpoint {authority} of {tenant or endpoint.tenant_id} {what}",
        remedy=remedy,
        tenant_id=endpoint.tenant_id,
        endpoint_id=endpoint.endpoint_id,
    )

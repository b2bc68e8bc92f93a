"""The state of the cluster: who runs and who owns what, with the findings on nodes, roles and shards."""

from __future__ import annotations

import socket
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from django.conf import settings

from eventservice.kernel.findings import Finding, Severity
from eventservice.kernel.processes import is_running, read_process
from eventservice.kernel.version import get_version
from eventservice.operators.formatting import format_count, format_duration, format_since
from eventservice.operators.health.dispatch import check_dispatch
from eventservice.operators.health.thresholds import OVERDUE
from outbox.models import OutboxPartition
from outbox.publisher_spec import list_names
from outbox.status import list_partitions
from timers.membership import NODE_LEASE
from timers.models import DispatchPause, Node, NodeRole
from timers.operator_views import Ownership, list_nodes, list_ownerships
from timers.pause import find_pause
from timers.persistence import timer_persistence
from timers.shard_sizes import MAX_ADVISED_TIMERS, ShardSizes

MAX_NAMED_SHARDS = 5
MAX_NAMED_NODES = 3
# What the pages of the console call the process that answers.
WEB_PROCESS = "web process"
# A cluster that has not run for so long has been given up or renamed.
FORGOTTEN_AFTER = timedelta(days=7)

ROLES = {
    NodeRole.ENGINE: "calls are accepted and stored, but not sent",
    NodeRole.DISPATCHER: "events are stored, but neither published nor sent to webhooks",
}
START_COMMANDS = {NodeRole.ENGINE: "poll_timers", NodeRole.DISPATCHER: "dispatch_outbox"}
# How long a process needs to take over what it may.
TAKEOVER_MARGIN = timedelta(seconds=5)
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
    pause: DispatchPause | None = None

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

    def group_dispatchers(self) -> dict[str, list[Node]]:
        """Return the live dispatchers by the names of their publishers, in the order in which they started.

        Those of releases before `Node.publishers` are left out.
        """
        groups: dict[str, list[Node]] = {}
        for node in self.nodes:
            if node.role == NodeRole.DISPATCHER and node.publishers and node.is_alive(self.now):
                groups.setdefault(node.publishers, []).append(node)
        return groups

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
        """Return the attempts in progress. What a dead node had in flight is over, or unknown."""
        return sum(node.in_flight for node in self.nodes if node.is_alive(self.now))

    @property
    def shards(self) -> int:
        return sum(group.shards for group in self.ownerships)

    @property
    def unowned_shards(self) -> int:
        return sum(group.shards for group in self.ownerships if group.owner_id is None)

    @property
    def shards_of_dead_nodes(self) -> int:
        """The number of shards whose owner has stopped sending heartbeats, and that nobody has claimed since."""
        dead = {node.owner_id for node in self.nodes if not node.is_alive(self.now)}
        return sum(group.shards for group in self.ownerships if group.owner_id in dead)

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


def read_cluster(now: datetime, chains: Iterable[Chain]) -> ClusterState:
    """Read who runs and owns what. Clusters that have not run for FORGOTTEN_AFTER are left out."""
    current = [chain for chain in chains if chain.taken_at is None or now - chain.taken_at < FORGOTTEN_AFTER]
    return ClusterState(now, list_nodes(), list_ownerships(), list_partitions(), current, find_pause())


def check_cluster(cluster: ClusterState, process: str = "process") -> list[Finding]:
    """Return every finding on nodes, roles and leases. `process` is what this process is called in a sentence."""
    return [
        check_dispatch(cluster.pause, cluster.nodes, cluster.now),
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
        *_check_versions(cluster, process),
        *_check_publishers(cluster, process),
        *_check_owners(cluster),
        *_check_standbys(cluster),
        *_check_chains(cluster),
        *_check_stopped_clusters(cluster),
    ]


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
        start = f"Start one with `manage.py cluster` (or `manage.py {START_COMMANDS[role]}`)."
        lost = [node for node in nodes if node.role == role]
        return f"{_describe_lost_node(lost[-1])} {start}" if lost else start
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


def _describe_lost_node(node: Node) -> str:
    """Return what is known of a node whose heartbeats have ended, and what to do with its process."""
    name = f"Process {node.process_id} on {node.hostname}, which was the last one,"
    is_here = node.hostname == socket.gethostname()
    process = read_process(node.process_id) if is_here else None
    if not is_here or (process is None and is_running(node.process_id)):
        return (
            f"{name} did not stop gracefully. If it still exists, it is frozen or cannot reach the database: its log and `ps` "
            "say which. Resume it or end it (`kill -CONT`, `kill -9`)."
        )
    if process is None or process.started_at > node.started_at.timestamp():
        return f"{name} has crashed or was killed (its log may say why), or it ran when the backup was made that was restored."
    if process.is_stopped:
        return (
            f"{name} still exists, and is stopped (`ps` shows the state T). Resume it and the other processes of its cluster "
            "with `kill -CONT`, or end them with `kill -9`."
        )
    return (
        f"{name} still exists, and sends no heartbeats: it hangs or cannot reach the database, and its log says which. If it "
        "does not recover, end it and the other processes of its cluster with `kill -9`."
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


def _check_versions(cluster: ClusterState, process: str) -> Iterator[Finding]:
    """Report processes that run other code than this one: left over from before an upgrade, or newer."""
    others = [node for node in cluster.nodes if node.is_alive(cluster.now) and node.version != get_version()]
    for node in others[:MAX_NAMED_NODES]:
        text = (
            f"{_capitalize(describe_node(node))} runs version"
            f" {node.version or 'unknown'} of the code, this {process} {get_version()} (a hash of its files)."
        )
        remedy = f"Restart it with the current code. If it is newer than this {process}, restart this one."
        yield Finding("other_version", Severity.WARNING, text, remedy)
    if len(others) > MAX_NAMED_NODES:
        text = f"{format_count(len(others) - MAX_NAMED_NODES, 'other node')} run another version of the code."
        yield Finding("other_version", Severity.WARNING, text, "See the list of nodes.")


def _check_publishers(cluster: ClusterState, process: str) -> Iterator[Finding]:
    """Report dispatchers that publish to others than the rest, or than this process would: an event counts as published
    when the one dispatcher that owns its partition has passed it to its own publishers."""
    groups = list(cluster.group_dispatchers().values())
    described = "; ".join(_describe_publishers(nodes) for nodes in groups)
    own = list_names(settings.PUBLISHERS)
    if len(groups) > 1:
        since = sorted(nodes[0].started_at for nodes in groups)[1]
        yield Finding(
            "different_publishers",
            Severity.ERROR,
            "The dispatchers have different publishers, and each event goes only to those of one dispatcher. Publishing to"
            f" {described}.",
            "Set PUBLISHERS to the same value for all processes and restart all clusters. Then publish what was left out: "
            f"`manage.py outbox replay --since {since:%Y-%m-%dT%H:%M:%SZ}`, or since an earlier time if others differed before.",
        )
    elif groups and groups[0][0].publisher_names != own:
        yield Finding(
            "different_publishers",
            Severity.WARNING,
            f"This {process} has other PUBLISHERS ({', '.join(own)}) than the dispatchers. Publishing to {described}.",
            "Set PUBLISHERS to the same value for all processes and restart those that differ. If the dispatchers lacked a"
            " publisher, run `manage.py outbox replay --since` with the time since which they did.",
        )


def _describe_publishers(nodes: Sequence[Node]) -> str:
    """Return who publishes to the same publishers: "log, webhook: the dispatcher on host-1 (process 123) and 2 more"."""
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"{', '.join(nodes[0].publisher_names)}: {describe_node(nodes[0])}{more}"


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

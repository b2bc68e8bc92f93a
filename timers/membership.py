"""Nodes, and the shards they own.

A node's row in `nodes` is its right to write. Its heartbeat extends `lease_until`. When the heartbeat stops and the lease
ends, another node reaps it: it deletes the row and frees the shards in one transaction. Every write of an engine holds a
share lock on what it depends on (the shards' versions when it starts calls, the node's row when it records their
outcomes), so a reaped node that wakes up can no longer write anything.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import NamedTuple

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Max, Model, QuerySet

from eventservice.db.dialects import get_dialect
from eventservice.db.leases import Fenced, Leases, pick_share, release_leases, shorten_future_leases
from eventservice.db.now import DbNow, db_now, render_now
from eventservice.db.sql import as_uuid
from eventservice.kernel.ids import new_id
from eventservice.kernel.logging import get_logger
from timers.models import MAX_NODE_LEASE, MAX_NODE_LEASE_AHEAD, Node, NodeRole, TimerShard
from timers.pause import find_pause

log = get_logger(__name__)

NODE_LEASE = timedelta(seconds=settings.NODE_LEASE_SECONDS)
# Longer than a node's lease, so that a dead node is always reaped before its shards could be claimed.
SHARD_LEASE = timedelta(seconds=60)
MAX_MOVES_PER_TICK = 512


class Membership:
    """The node that this process is: its lease, its role, and its share of the shards."""

    def __init__(
        self, role: NodeRole = NodeRole.ENGINE, cluster: str = "", publishers: Collection[str] = ()
    ) -> None:
        """`publishers` are the names of those to which a dispatcher publishes."""
        self.owner_id = new_id()
        self.role = role
        self.cluster = cluster
        self.publishers = publishers
        self.leases = Leases(TimerShard, self.owner_id, SHARD_LEASE)
        self.sees_dead_nodes = False  # as of the last rebalance: there are nodes to reap
        self.is_paused = False  # dispatch, as of the last time that the nodes were read
        self._share: set[int] = set()
        self._shared_among: tuple[frozenset[uuid.UUID], int] | None = None
        self._renew_at = 0.0
        self._lease_ends_at = 0.0

    def join(self) -> None:
        self._note_pause(find_pause() is not None)
        started_at = time.monotonic()
        Node.objects.create(
            owner_id=self.owner_id,
            role=self.role,
            cluster=self.cluster,
            publishers=",".join(sorted(self.publishers)) or None,
            hostname=socket.gethostname(),
            process_id=os.getpid(),
            started_at=DbNow(),
            lease_until=DbNow(NODE_LEASE),
        )
        self._lease_ends_at = started_at + NODE_LEASE.total_seconds()

    @property
    def lease_may_have_ended(self) -> bool:
        """Whether the last heartbeat is so long ago that this node may have been reaped."""
        return time.monotonic() > self._lease_ends_at

    def heartbeat(self, in_flight: int) -> bool:
        """Extend the lease. Return whether it was late enough that other nodes may have been delayed too.

        Raise Fenced if this node has been reaped.
        """
        started_at = time.monotonic()
        is_late = not self._extend_lease(in_flight, NODE_LEASE / 2)
        if is_late and not self._extend_lease(in_flight):
            raise Fenced
        self._lease_ends_at = started_at + NODE_LEASE.total_seconds()
        return is_late

    def _extend_lease(self, in_flight: int, min_left: timedelta | None = None) -> bool:
        """Extend the lease, if it has not been taken away and at least `min_left` of it is left. Return whether it was."""
        # Raw SQL, because every process does this every two seconds: through the ORM it took three times as long.
        end, values = render_now(NODE_LEASE)
        sql = f"UPDATE nodes SET lease_until = {end}, in_flight = %s, role = %s WHERE owner_id = %s"
        values = [*values, in_flight, self.role.value, self.owner_id.hex]
        if min_left is not None:
            earliest, more = render_now(min_left)
            sql, values = f"{sql} AND lease_until >= {earliest}", [*values, *more]
        with connection.cursor() as cursor:
            cursor.execute(sql, values)
            return bool(cursor.rowcount)

    def rebalance(self, num_shards: int) -> bool:
        """Release the shards that are now another node's share, and claim the free ones of this node's share.

        Return whether any were claimed. Raise Fenced if this node has been reaped.
        """
        nodes = self._read_nodes()
        self.sees_dead_nodes = not all(node.is_alive for node in nodes)
        live = _select_live(NodeRole.ENGINE, nodes)
        if self.owner_id not in live:
            return False
        if (live, num_shards) != self._shared_among:
            ensure_shards(num_shards)
            self._share = pick_share(range(num_shards), self.owner_id, live)
            self._shared_among = live, num_shards
        self.leases.release(sorted(set(self.leases.held) - self._share)[:MAX_MOVES_PER_TICK])
        self._renew()
        wanted = sorted(self._share - set(self.leases.held))[:MAX_MOVES_PER_TICK]
        return bool(wanted) and self._claim(wanted)

    def _claim(self, shard_ids: Sequence[int]) -> bool:
        """Claim those of the shards that are free, and return whether there were any. Raise Fenced if this node has been reaped.

        It cannot be reaped meanwhile: nobody would free what it claims afterwards before the leases of the shards end.
        """
        held = dict(self.leases.held)
        try:
            with transaction.atomic():
                self.fence()
                claimed = [shard_id for shard_id in shard_ids if self.leases.claim(shard_id)]
        except BaseException:
            self.leases.held = held
            raise
        return bool(claimed)

    def list_live(self, role: NodeRole) -> frozenset[uuid.UUID]:
        """Return the live nodes of a role, which share its work, and note whether dispatch is paused."""
        return _select_live(role, self._read_nodes())

    def _read_nodes(self) -> list[_NodeState]:
        nodes, is_paused = _read_nodes()
        self._note_pause(is_paused)
        return nodes

    def _note_pause(self, is_paused: bool) -> None:
        if is_paused and not self.is_paused:
            log.warning("dispatch_paused", role=self.role.value, remedy="manage.py dispatch resume")
        elif self.is_paused and not is_paused:
            log.info("dispatch_resumed", role=self.role.value)
        self.is_paused = is_paused

    def _renew(self) -> None:
        # The node's lease shows that it is alive, so the leases of its shards need renewing only now and then.
        if time.monotonic() > self._renew_at:
            self.leases.renew()
            self._renew_at = time.monotonic() + SHARD_LEASE.total_seconds() / 3

    def fence(self) -> None:
        """Lock the node's row until the caller's transaction ends. Raise Fenced if this node has been reaped."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT 1 FROM nodes WHERE owner_id = %s {get_dialect().locks.for_share}",
                [self.owner_id.hex],
            )
            if cursor.fetchone() is None:
                raise Fenced

    def hand_over(self, in_flight: int) -> None:
        """Release all shards and claim no more. The node may still finish the attempts it has started."""
        self.role = NodeRole.LEAVING
        self.heartbeat(in_flight)
        self.leases.release(list(self.leases.held))

    @transaction.atomic
    def leave(self) -> None:
        """Delete the node's row, and free the shards it still owns: nobody reaps a node without a row."""
        Node.objects.filter(pk=self.owner_id).delete()
        release_leases(TimerShard.objects.filter(owner_id=self.owner_id))


def list_silent_nodes() -> list[Node]:
    """Return the nodes whose lease has ended. Those among them whose lease is void, because the clock was set back, get
    a valid one, which ends if they stay silent."""
    now = db_now()
    silent = [node for node in Node.objects.order_by("started_at", "owner_id") if not node.is_alive(now)]
    shorten_future_leases(Node.objects.all(), NODE_LEASE, MAX_NODE_LEASE)
    return silent


def reap_dead_node(
    by: uuid.UUID | None = None, among: Collection[uuid.UUID] | None = None
) -> uuid.UUID | None:
    """Fence one dead node and free its shards. Return its id so that its calls can be resolved, or None.

    A node whose own lease has ended declares no node dead: what delayed its heartbeat may have delayed the others too.

    `among` restricts it to these nodes.

    Locked rows are skipped. A node that froze inside a transaction would block this one as well; it is reaped once the
    database has ended that transaction.

    A node whose lease ends too late, because the clock was set back, has as long as a lease to send a heartbeat.
    """
    shorten_future_leases(Node.objects.all(), NODE_LEASE, MAX_NODE_LEASE)
    dead = list(Node.objects.dead().values_list("pk", flat=True))
    if by in dead:
        return None
    for owner_id in dead if among is None else [node for node in dead if node in among]:
        with transaction.atomic():
            node = Node.objects.dead().filter(pk=owner_id)
            shards = TimerShard.objects.filter(owner_id=owner_id)
            if _lock_all(node) and (found := node.first()) and _lock_all(shards):
                release_leases(shards)
                node.delete()
            else:
                continue
        # The name of the process is in no table any more.
        log.warning(
            "node_reaped",
            node=str(owner_id),
            role=found.role,
            hostname=found.hostname,
            pid=found.process_id,
            cluster=found.cluster,
        )
        return owner_id
    return None


def _lock_all(rows: QuerySet[Model]) -> bool:
    """Lock the rows. Return whether no other transaction holds any of them."""
    return len(rows.select_for_update(skip_locked=True)) == rows.count()


def list_node_ids() -> list[uuid.UUID]:
    """Return the ids of the nodes that have not been reaped: only these may record the outcome of their attempts."""
    return list(Node.objects.values_list("pk", flat=True))


def list_live_node_ids(role: NodeRole) -> frozenset[uuid.UUID]:
    """Return the live nodes of a role, which share its work."""
    return _select_live(role, _read_nodes()[0])


def list_publishers(owner_ids: Collection[uuid.UUID]) -> list[str]:
    """Return the different lists of publishers of these dispatchers, each as names separated by commas."""
    found = Node.objects.filter(pk__in=owner_ids)
    return sorted({names for names in found.values_list("publishers", flat=True) if names})


class _NodeState(NamedTuple):
    owner_id: uuid.UUID
    role: str
    is_alive: bool  # as Node.is_alive decides


def _select_live(role: NodeRole, nodes: Sequence[_NodeState]) -> frozenset[uuid.UUID]:
    return frozenset(node.owner_id for node in nodes if node.role == role and node.is_alive)


def has_live_engines() -> bool:
    """Return whether there is a live node that may claim shards. One that is stopping may not."""
    return bool(_select_live(NodeRole.ENGINE, _read_nodes()[0]))


def _read_nodes() -> tuple[list[_NodeState], bool]:
    """Return the nodes, and whether dispatch is paused. Without any node it is not known to be."""
    # Raw SQL, because it runs every second: through the ORM it took half of what an idle engine uses.
    now, values = render_now()
    with connection.cursor() as cursor:
        latest, latest_values = render_now(MAX_NODE_LEASE_AHEAD)
        is_alive = f"lease_until >= {now} AND lease_until <= {latest}"
        cursor.execute(
            f"SELECT owner_id, role, {is_alive}, (SELECT COUNT(*) FROM dispatch_pauses) FROM nodes",
            [*values, *latest_values],
        )
        rows = cursor.fetchall()
    nodes = [_NodeState(as_uuid(owner_id), role, bool(alive)) for owner_id, role, alive, _ in rows]
    return nodes, any(pauses for *_, pauses in rows)


def ensure_shards(num_shards: int) -> None:
    """Create the rows of missing shards. Shard ids are dense, so the largest id tells how many there are."""
    highest = TimerShard.objects.aggregate(highest=Max("shard_id"))["highest"]
    missing = range(0 if highest is None else highest + 1, num_shards)
    TimerShard.objects.bulk_create(
        [TimerShard(shard_id=n) for n in missing], ignore_conflicts=True, batch_size=500
    )

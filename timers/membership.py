"""Nodes and the shards that they own.

A node's row in `nodes` is its right to write. Its heart beats by pushing `lease_until` on; when it has stopped,
another node *reaps* it: deletes the row and frees its shards in one transaction. Every write of an engine holds
a share lock on what it rests on (the shards' versions when it starts calls, the node's row when it finishes
them), so a reaped node that wakes up finds that nothing of it lands any more.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, Max, QuerySet

from eventservice.db.leases import Fenced, Leases, pick_share
from eventservice.db.now import DbNow, render_now
from eventservice.db.sql import as_uuid, share_lock
from eventservice.kernel.ids import new_id
from timers.models import Node, NodeRole, TimerShard

NODE_LEASE = timedelta(seconds=settings.NODE_LEASE_SECONDS)
# Longer than the node's, so that a dead node is always reaped before its shards could be claimed.
SHARD_LEASE = timedelta(seconds=60)
MAX_MOVES_PER_TICK = 512


class Membership:
    """This node among the live ones, and its share of the shards."""

    def __init__(self, role: NodeRole = NodeRole.ENGINE) -> None:
        self.owner_id = new_id()
        self.role = role
        self.leases = Leases(
            TimerShard, self.owner_id, SHARD_LEASE, {"host": socket.gethostname(), "pid": os.getpid()}
        )
        self._mine: set[int] = set()
        self._shared_among: tuple[frozenset[uuid.UUID], int] | None = None
        self.sees_dead_nodes = False  # when it last rebalanced: somebody to be reaped
        self._renew_at = 0.0
        self._lease_ends = 0.0

    def join(self) -> None:
        begun = time.monotonic()
        Node.objects.create(
            owner_id=self.owner_id,
            role=self.role,
            hostname=socket.gethostname(),
            process_id=os.getpid(),
            started_at=DbNow(),
            lease_until=DbNow(NODE_LEASE),
        )
        self._lease_ends = begun + NODE_LEASE.total_seconds()

    @property
    def lease_may_have_ended(self) -> bool:
        """Whether so long has passed since the last beat that this node may have been reaped."""
        return time.monotonic() > self._lease_ends

    def heartbeat(self, in_flight: int) -> bool:
        """Whether it comes so late that others may have been kept from theirs too. Raises Fenced when this node has
        been reaped."""
        begun = time.monotonic()
        node = Node.objects.filter(pk=self.owner_id)
        state = {"lease_until": DbNow(NODE_LEASE), "in_flight": in_flight, "role": self.role}
        late = not node.filter(lease_until__gte=DbNow(NODE_LEASE / 2)).update(**state)
        if late and not node.update(**state):
            raise Fenced
        self._lease_ends = begun + NODE_LEASE.total_seconds()
        return late

    def rebalance(self, num_shards: int) -> bool:
        """Let go of the shards that fall to others now, take the free ones that fall to this node; whether there
        were any."""
        nodes = _nodes()
        self.sees_dead_nodes = not all(node.is_alive for node in nodes)
        live = _live(NodeRole.ENGINE, nodes)
        if self.owner_id not in live:
            return False
        if (live, num_shards) != self._shared_among:
            ensure_shards(num_shards)
            self._mine = pick_share(range(num_shards), self.owner_id, live)
            self._shared_among = live, num_shards
        self.leases.release(sorted(set(self.leases.held) - self._mine)[:MAX_MOVES_PER_TICK])
        self._renew()
        wanted = sorted(self._mine - set(self.leases.held))[:MAX_MOVES_PER_TICK]
        claimed = [shard_id for shard_id in wanted if self.leases.claim(shard_id)]
        return bool(claimed)

    def _renew(self) -> None:
        # The node's own lease is what tells that it lives; its shards' are renewed now and then.
        if time.monotonic() > self._renew_at:
            self.leases.renew()
            self._renew_at = time.monotonic() + SHARD_LEASE.total_seconds() / 3

    def fence(self) -> None:
        """Inside a transaction: hold the node's row until it ends, or raise."""
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT 1 FROM nodes WHERE owner_id = %s {share_lock()}", [self.owner_id.hex])
            if cursor.fetchone() is None:
                raise Fenced

    def hand_over(self, in_flight: int) -> None:
        """Let go of all shards, and of the claim to any; the right to finish what has begun stays."""
        self.role = NodeRole.LEAVING
        self.heartbeat(in_flight)
        self.leases.release(list(self.leases.held))

    @transaction.atomic
    def leave(self) -> None:
        """With all shards that are still its own: without the row nobody would free them."""
        Node.objects.filter(pk=self.owner_id).delete()
        _free(TimerShard.objects.filter(owner_id=self.owner_id))


def reap_dead_node(by: uuid.UUID | None = None) -> uuid.UUID | None:
    """Fence one node whose heart has stopped, and free its shards; its id, so that its calls can be resolved. A node
    whose own lease has run out finds nobody dead: what kept it from beating may have kept the others too.

    Nothing is waited for: a node that froze inside a transaction would freeze this one with it. It is reaped
    when the database has ended that transaction.
    """
    expired = list(Node.objects.dead().values_list("pk", flat=True))
    for owner_id in expired if by not in expired else []:
        with transaction.atomic():
            node = Node.objects.dead().filter(pk=owner_id)
            shards = TimerShard.objects.filter(owner_id=owner_id)
            if _all_locked(node) and node.exists() and _all_locked(shards):
                _free(shards)
                node.delete()
                return owner_id
    return None


def _free(shards: QuerySet[Any]) -> None:
    shards.update(version=F("version") + 1, owner_id=None, lease_until=None)


def _all_locked(rows: QuerySet[Any]) -> bool:
    """Lock them, unless others hold any of them."""
    return len(rows.select_for_update(skip_locked=True)) == rows.count()


def list_node_ids() -> list[uuid.UUID]:
    """Only they may still finish what they began."""
    return list(Node.objects.values_list("pk", flat=True))


def list_live_node_ids(role: NodeRole) -> frozenset[uuid.UUID]:
    """Those that share the work of this role."""
    return _live(role, _nodes())


class _KnownNode(NamedTuple):
    owner_id: uuid.UUID
    role: str
    is_alive: bool


def _live(role: NodeRole, nodes: Sequence[_KnownNode]) -> frozenset[uuid.UUID]:
    return frozenset(node.owner_id for node in nodes if node.role == role and node.is_alive)


def _nodes() -> list[_KnownNode]:
    """In SQL: it is asked every second, and the ORM would take half of what an idle engine takes."""
    now, values = render_now()
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT owner_id, role, lease_until >= {now} FROM nodes", values)
        return [_KnownNode(as_uuid(owner_id), role, bool(alive)) for owner_id, role, alive in cursor]


def ensure_shards(num_shards: int) -> None:
    """Shard ids are dense, so the largest tells how many rows there are."""
    highest = TimerShard.objects.aggregate(highest=Max("shard_id"))["highest"]
    missing = range(0 if highest is None else highest + 1, num_shards)
    TimerShard.objects.bulk_create(
        [TimerShard(shard_id=n) for n in missing], ignore_conflicts=True, batch_size=500
    )

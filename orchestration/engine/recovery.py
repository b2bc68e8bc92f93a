"""Recovery on demand: does for operators, while no engine runs, what an engine does when another one is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from execution.attempt_log import AttemptKey, drop_attempts_of, list_orphaned_attempts
from orchestration import lifecycle
from timers.membership import NODE_LEASE, list_node_ids, list_silent_nodes, reap_dead_node
from timers.models import Node

BATCH_SIZE = 500
# How many calls past their deadline are read. Those of live nodes may come first, and must not hide the others.
MAX_OVERDUE = 10_000


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result: what was done, and what was left."""

    # The nodes that were declared dead. Their shards are free.
    reaped: Sequence[Node]
    # Nodes that have stopped sending heartbeats and could not be reaped, because their transactions are open.
    locked: Sequence[Node]
    resolved: int
    # Calls past their deadline that nodes have in progress, which resolve them.
    overdue: int


def recover(silent: Collection[Node], wait: Callable[[float], object] = time.sleep) -> Recovery:
    """Declare those nodes dead that stay silent for the length of a lease. Resolve the calls of all that are gone.

    A node whose lease has ended may only have waited for the database. As an engine does after trouble, this gives it as
    long as a lease to send a heartbeat.
    """
    reaped: list[Node] = []
    if silent:
        wait(NODE_LEASE.total_seconds())
        nodes = {node.pk: node for node in silent}
        while (owner_id := reap_dead_node(among=set(nodes))) is not None:
            reaped.append(nodes.pop(owner_id))
    remaining = {node.pk for node in list_silent_nodes()}
    return Recovery(
        reaped,
        [node for node in silent if node not in reaped and node.pk in remaining],
        resolve_stuck_calls(),
        len(lifecycle.list_overdue_attempts(MAX_OVERDUE)),
    )


def resolve_stuck_calls() -> int:
    """Resolve the calls of nodes that are gone, and those past their deadline that no node has in progress.

    Return how many. Those in progress are left to their nodes, as an engine leaves them: they may be past the deadline
    only because the clock was set forward.
    """
    resolved = 0
    while keys := list_orphaned_attempts(list_node_ids, BATCH_SIZE):
        resolved += lifecycle.resolve_orphaned(keys, list_node_ids)
    while keys := _list_abandoned_attempts():
        resolved += lifecycle.resolve_interrupted(keys)
    return resolved


def _list_abandoned_attempts() -> list[AttemptKey]:
    overdue = lifecycle.list_overdue_attempts(MAX_OVERDUE)
    return drop_attempts_of(list_node_ids(), overdue)[:BATCH_SIZE]

"""What other modules may use of timers."""

from timers.models import NodeRole
from timers.overview import (
    MOST_OVERDUE,
    ListedShards,
    Ownership,
    ShardState,
    backlog,
    nodes,
    ownerships,
    shard_states,
    shards,
    shards_by_owner,
    stuck_shards,
)
from timers.poller import LARGE, DueTimer, HeldBack, Poller, mark_reached
from timers.schedule import (
    Timer,
    by_correlation,
    due_of_tenant,
    lock_pending,
    rearm,
    schedule,
    schedule_again,
    timer_of,
    unschedule,
)
from timers.shards import Membership, live_nodes, reap_one, unreaped_nodes

__all__ = [
    "DueTimer",
    "HeldBack",
    "LARGE",
    "ListedShards",
    "MOST_OVERDUE",
    "Membership",
    "NodeRole",
    "Ownership",
    "Poller",
    "ShardState",
    "Timer",
    "backlog",
    "by_correlation",
    "due_of_tenant",
    "live_nodes",
    "mark_reached",
    "nodes",
    "ownerships",
    "reap_one",
    "lock_pending",
    "rearm",
    "schedule",
    "schedule_again",
    "shard_states",
    "shards",
    "shards_by_owner",
    "stuck_shards",
    "timer_of",
    "unreaped_nodes",
    "unschedule",
]

"""What other modules may use of timers."""

from timers.models import NodeRole
from timers.overview import nodes, shards, shards_by_owner
from timers.poller import DueTimer, HeldBack, Poller
from timers.schedule import (
    Timer,
    by_correlation,
    due_of_tenant,
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
    "Membership",
    "NodeRole",
    "Poller",
    "Timer",
    "by_correlation",
    "due_of_tenant",
    "live_nodes",
    "nodes",
    "rearm",
    "reap_one",
    "schedule",
    "schedule_again",
    "shards",
    "shards_by_owner",
    "timer_of",
    "unreaped_nodes",
    "unschedule",
]

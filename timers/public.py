"""What other modules may use of timers."""

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
from timers.shards import Membership, live_nodes, reap_one

__all__ = [
    "DueTimer",
    "HeldBack",
    "Membership",
    "Poller",
    "Timer",
    "by_correlation",
    "due_of_tenant",
    "live_nodes",
    "rearm",
    "reap_one",
    "schedule",
    "schedule_again",
    "timer_of",
    "unschedule",
]

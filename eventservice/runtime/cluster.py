"""The cluster: engine and dispatcher as django-q2 tasks.

A worker runs *slices*: tasks of a few seconds, each of which enqueues its successor as its first act. So the next
slice is waiting when one ends, and is already in the queue when one is killed. A slice says which chain it belongs
to, and not which role to play: see `slots`.
"""

from __future__ import annotations

import gc
from datetime import timedelta

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection, transaction
from django_q.models import Schedule
from django_q.tasks import async_task

from eventservice.db.errors import find_trouble, tolerate_outage
from eventservice.db.now import DbNow
from eventservice.kernel.logging import get_logger
from eventservice.kernel.version import get_version
from eventservice.runtime.cluster_process import this_process
from eventservice.runtime.django_q_patch import WorkerHooks, run_patched_cluster
from eventservice.runtime.environment import apply_dispatch_setting, warn_of_default_environment
from eventservice.runtime.models import Slot
from eventservice.runtime.slots import (
    cluster_name,
    consume_ticket,
    filter_slots,
    find_stalled_chains,
    restart_chain,
    slot_name,
)
from eventservice.runtime.worker import ROLES, current_worker
from orchestration.statistics.rollup import roll_up
from orchestration.statistics.storage import measure_storage
from timers.shard_sizes import measure_shard_sizes

log = get_logger(__name__)

# How long a slice plays its role between two attempts to consume its ticket while the database is unavailable.
TICKET_RETRY_SECONDS = 1.0
# How much of each minute the figures for charts may take, and how often the engine leaves them to another worker,
# which may not exist.
ROLL_UP_SECONDS = 0.5
MAX_ROLL_UP_HANDOVERS = 5
# What runs each minute is never scheduled further ahead than this, also if django-q2's clock, which is the machine's,
# differs from the database's.
MAX_SCHEDULED_AHEAD = timedelta(minutes=2)


# --- tasks ----------------------------------------------------------------------------------------------------


def run_slice(slot: str, ticket: int) -> None:
    """Play this process's role for SLICE_SECONDS, if the ticket is valid."""
    if this_process.is_stopping():
        try:
            # The next cluster finds the slice where this one found it.
            _enqueue_slice(slot, ticket)
        finally:
            # The cluster may have begun to stop after the last slice of this worker, which still has its role.
            current_worker().run_for(0)
    elif _consume_ticket(slot, ticket):
        correct_future_schedules()
        current_worker().run_for(settings.SLICE_SECONDS)
    this_process.exit_if_terminated()


def _enqueue_slice(slot: str, ticket: int) -> None:
    async_task(run_slice, slot, ticket)


def _consume_ticket(slot: str, ticket: int) -> bool:
    """Consume the ticket, however long the database is unavailable: a slice that gave up would have no successor.

    The role goes on meanwhile: it has results to keep. Return False if the ticket is void, or the cluster stops.
    """
    while True:
        try:
            return consume_ticket(slot, ticket, _enqueue_slice)
        except (DatabaseError, InterfaceError) as error:
            trouble = find_trouble(error)
            if trouble is None:
                log.exception("ticket_not_consumed", slot=slot)
            else:  # a known outage, which is repeated each second, needs no traceback
                log.error("ticket_not_consumed", slot=slot, trouble=trouble.text, error=str(error).strip())
            connection.close_if_unusable_or_obsolete()
        current_worker().run_for(TICKET_RETRY_SECONDS)
        if this_process.is_stopping():
            return False


def restart_stalled_chains() -> None:
    """Restart each chain of this cluster that has stopped, for whatever reason. Runs once a minute."""
    pause = timedelta(seconds=3 * settings.SLICE_SECONDS + settings.SHUTDOWN_SECONDS)
    if not (stalled := find_stalled_chains(ROLES, pause)):
        return
    # If the clock was set forward, they are at work, and consume their next tickets meanwhile.
    this_process.extend_task_deadline(2 * settings.SLICE_SECONDS + settings.FROZEN_SECONDS)
    current_worker().run_for(2 * settings.SLICE_SECONDS)
    if this_process.is_stopping():
        return
    for name, _ in stalled & find_stalled_chains(ROLES, pause):
        log.warning("chain_restarted", slot=name)
        restart_chain(name, _enqueue_slice)


def correct_future_schedules() -> None:
    """Make due what is scheduled further ahead than a minute allows, because the clock was set back."""
    ahead = Schedule.objects.filter(cluster=cluster_name(), next_run__gt=DbNow(MAX_SCHEDULED_AHEAD))
    with tolerate_outage(0.0):
        if ahead.exists():
            ahead.update(next_run=DbNow())


def roll_up_calls(handovers: int = 0) -> None:
    """Count the figures for charts, and measure what tenants store and shards hold. Runs once a minute.

    The engine's process leaves it to another worker, since its calls would be late by as long as it takes.
    """
    if this_process.is_stopping():
        return
    if current_worker().plays("engine") and handovers < MAX_ROLL_UP_HANDOVERS:
        async_task(roll_up_calls, handovers + 1)
        return
    roll_up(ROLL_UP_SECONDS)
    measure_storage(ROLL_UP_SECONDS)
    measure_shard_sizes(ROLL_UP_SECONDS)


SCHEDULED_EACH_MINUTE = {
    "restart stalled chains": "eventservice.runtime.cluster.restart_stalled_chains",
    "roll up": "eventservice.runtime.cluster.roll_up_calls",
}
# Names under which older releases have stored what is not called any more.
RETIRED_SCHEDULES = ["mend chains"]


# --- starting -------------------------------------------------------------------------------------------------


def run_cluster() -> int:
    """Run the cluster until SIGTERM or SIGINT. Return its exit status, which is 0 if nothing was lost or killed."""
    get_version()  # before the code on disk may change, for all processes that are forked
    warn_of_default_environment()
    apply_dispatch_setting()
    start_chains()
    schedule_each_minute()
    _tune_garbage_collector()
    return run_patched_cluster(
        WorkerHooks(
            play=lambda seconds: current_worker().run_for(seconds),
            release=lambda: current_worker().end(),
            report_loss=lambda: current_worker().report_loss(),
        )
    )


def start_chains() -> None:
    """Issue a fresh ticket for every slot. Slices that were enqueued before are void."""
    for role in ROLES:
        Slot.objects.get_or_create(name=slot_name(role))
        restart_chain(slot_name(role), _enqueue_slice)


def schedule_each_minute() -> None:
    """Store each minute's tasks in django-q2's table, once for this cluster. Call `start_chains` first.

    Nothing in that table keeps machines that start together from adding one each: they take turns by locking the
    slots that they share.
    """
    with transaction.atomic():
        list(filter_slots(ROLES).select_for_update().order_by("name"))
        _update_schedules_of_older_releases()
        for name, func in SCHEDULED_EACH_MINUTE.items():
            named = {"name": name, "cluster": cluster_name()}
            same = Schedule.objects.filter(**named).order_by("id").values_list("id", flat=True)
            Schedule.objects.filter(id__in=list(same)[1:]).delete()
            Schedule.objects.update_or_create(
                **named, defaults={"func": func, "schedule_type": Schedule.MINUTES, "minutes": 1}
            )


def _update_schedules_of_older_releases() -> None:
    # A schedule that names no cluster is run by the clusters of one name only.
    Schedule.objects.filter(name__in=[*SCHEDULED_EACH_MINUTE, *RETIRED_SCHEDULES], cluster=None).update(
        cluster=cluster_name()
    )
    Schedule.objects.filter(name__in=RETIRED_SCHEDULES, cluster=cluster_name()).delete()


def _tune_garbage_collector() -> None:
    """Exempt what is loaded now, and collect seldom.

    The workers, which are forked from here, share it: the collector must neither visit nor copy it. And a batch makes
    thousands of objects that live until it is written: by default they would be visited hundreds of times meanwhile,
    a tenth of the engine's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)

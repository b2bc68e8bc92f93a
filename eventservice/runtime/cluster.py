"""Engine and dispatcher as django-q2 tasks.

A worker of the cluster runs *slices*: tasks of a few seconds, each of which queues its successor as its first
act, so that the next one is waiting when it ends, and is already queued when it is killed. Two things are kept
apart, and each slot (a row of `cluster_slots`) has one of both:

- a *ticket*, good for one slice. Taking it issues the next one in the same transaction, so a chain of slices
  can neither fork nor stop, and a task that is delivered twice does nothing the second time;
- a *seat*: the role that a process plays. It belongs to the process and not to the slice, because the engine's
  attempts in flight live in its process: whichever chain a worker takes its next slice from, it goes on with
  its own role. The seat's lease ends with the process, and then another worker sits down.
"""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import Event
from multiprocessing.synchronize import Event as EventType
from typing import Any, Protocol

import django_q.cluster
import django_q.worker
import structlog
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection, transaction
from django.db.models import F, Q, QuerySet
from django_q.cluster import Cluster, Sentinel
from django_q.models import Schedule
from django_q.signals import post_spawn
from django_q.tasks import async_task

from eventservice.db.errors import tolerate_outage
from eventservice.db.now import DbNow
from eventservice.kernel.ids import new_id
from eventservice.runtime.models import Slot
from eventservice.runtime.wiring import build_dispatcher, build_engine
from orchestration.statistics.rollup import roll_up

log = structlog.get_logger(__name__)

SEAT_LEASE = timedelta(seconds=8)
RENEW_SECONDS = 2.5
WAIT_FOR_SEAT_SECONDS = 0.25
AWAY_SECONDS = 1.0
# What a worker that stops may take beyond SHUTDOWN_SECONDS before it is killed.
GRACE_SECONDS = 5
# Of each minute; and how often it is left to the other worker, who may not be there.
ROLL_UP_SECONDS = 0.5
MOST_PASSED_ON = 5


class Role(Protocol):
    """What a worker does: one step at a time, none longer than `longest_nap` when there is nothing to do."""

    def step(self, longest_nap: float) -> object: ...

    def stop(self, grace_seconds: float) -> None: ...


ROLES: dict[str, Callable[[], Role]] = {"engine": build_engine, "dispatcher": build_dispatcher}


def cluster_name() -> str:
    return str(settings.Q_CLUSTER["cluster_name"])


def slot_name(role: str) -> str:
    return f"{cluster_name()}/{role}"


def own_slots() -> QuerySet[Slot]:
    """Those of another cluster are its own to mend: it has another queue."""
    return Slot.objects.filter(name__in=[slot_name(role) for role in ROLES])


def run_slice(slot: str, ticket: int) -> None:
    """The task."""
    if stopping():
        # The next cluster finds it where this one did.
        async_task(run_slice, slot, ticket)
        leave_if_told()
        return
    while (taken := _take_ticket(slot, ticket)) is None:
        # The role has results to keep meanwhile; and a slice that gave up here would have no successor.
        outstay(settings.FROZEN_SECONDS)
        worker().run_for(AWAY_SECONDS)
        if stopping():
            break
    if taken:
        worker().run_for(settings.SLICE_SECONDS)
    leave_if_told()


def _take_ticket(slot: str, ticket: int) -> bool | None:
    """And queue the next; None: the database is away."""
    try:
        with transaction.atomic():
            of_ticket = Slot.objects.filter(name=slot, ticket=ticket)
            taken = of_ticket.update(ticket=F("ticket") + 1, taken_at=DbNow())
            if taken:
                async_task(run_slice, slot, ticket + 1)
        return bool(taken)
    except (DatabaseError, InterfaceError):
        log.exception("ticket_not_taken", slot=slot)
        connection.close_if_unusable_or_obsolete()
        return None


def start_chains() -> None:
    """A fresh ticket for every slot: what was queued before is void."""
    for role in ROLES:
        Slot.objects.get_or_create(name=slot_name(role))
        _issue(slot_name(role))


def mend_chains() -> None:
    """Each minute (a django-q schedule): a chain that stands still, whatever broke it, is begun anew."""
    stale = DbNow(-timedelta(seconds=3 * settings.SLICE_SECONDS + settings.SHUTDOWN_SECONDS))
    for name in own_slots().filter(taken_at__lt=stale).values_list("name", flat=True):
        log.warning("chain_mended", slot=name)
        _issue(name)


def _issue(slot: str) -> None:
    with transaction.atomic():
        Slot.objects.filter(name=slot).update(ticket=F("ticket") + 1, taken_at=DbNow())
        async_task(run_slice, slot, Slot.objects.get(name=slot).ticket)


def roll_up_calls(passed_on: int = 0) -> None:
    """Each minute: the figures for charts. Not in the engine's process, whose calls would be late by so much."""
    if stopping():
        return
    if worker().seat == slot_name("engine") and passed_on < MOST_PASSED_ON:
        async_task(roll_up_calls, passed_on + 1)
        return
    roll_up(ROLL_UP_SECONDS)


class Worker:
    """This process: its seat, and the role that it plays there."""

    def __init__(self) -> None:
        self.id: uuid.UUID = new_id()
        self.seat: str | None = None
        self.role: Role | None = None
        self._renew_at = 0.0
        self._patient_until = 0.0

    def run_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not stopping():
            with tolerate_outage(left):
                self._step(left)
        if stopping():
            outstay(settings.SHUTDOWN_SECONDS + GRACE_SECONDS)
            self.stand_up(settings.SHUTDOWN_SECONDS)

    def _step(self, left: float) -> None:
        if self._seated() and self.role is not None:
            self.role.step(left)
        else:
            time.sleep(min(left, WAIT_FOR_SEAT_SECONDS))

    def _seated(self) -> bool:
        if time.monotonic() < self._renew_at:
            return self.seat is not None
        self._renew_at = time.monotonic() + RENEW_SECONDS
        try:
            if self.seat and not self._take(self.seat):
                # Another process took this one for dead.
                self.stand_up(grace_seconds=0)
            if self.seat is None:
                self._sit_down()
        except (DatabaseError, InterfaceError):
            # Whoever sits there has been kept from saying so, too.
            self._patient_until = time.monotonic() + SEAT_LEASE.total_seconds()
            raise
        return self.seat is not None

    def _sit_down(self) -> None:
        for name, build in ROLES.items():
            if self._take(slot_name(name)):
                self.seat, self.role = slot_name(name), build()
                log.info("seat_taken", seat=self.seat)
                return

    def _take(self, slot: str) -> bool:
        free = Q(owner_id=None) | Q(owner_id=self.id)
        if time.monotonic() >= self._patient_until:
            free |= Q(lease_until__lt=DbNow())
        return bool(
            Slot.objects.filter(free, name=slot).update(owner_id=self.id, lease_until=DbNow(SEAT_LEASE))
        )

    def stand_up(self, grace_seconds: float) -> None:
        seat, role, self.seat, self.role = self.seat, self.role, None, None
        if role is not None:
            with tolerate_outage():
                role.stop(grace_seconds)
        if seat is not None:
            Slot.objects.filter(name=seat, owner_id=self.id).update(owner_id=None, lease_until=None)


_worker: Worker | None = None
_worker_pid = 0


def worker() -> Worker:
    """One a process: a worker that django-q forks makes its own."""
    global _worker, _worker_pid
    if _worker is None or _worker_pid != os.getpid():
        _worker, _worker_pid = Worker(), os.getpid()
    return _worker


# --- starting and stopping the cluster ------------------------------------------------------------------------

EACH_MINUTE = {
    "mend chains": "eventservice.runtime.cluster.mend_chains",
    "roll up": "eventservice.runtime.cluster.roll_up_calls",
}

_stop_asked: EventType | None = None
_told_to_end = False  # this worker
_countdown: Any = None  # of this worker: a shared number, at whose end the sentinel takes it for frozen


def stopping() -> bool:
    return _told_to_end or (_stop_asked is not None and _stop_asked.is_set())


# Who stops a service may send SIGTERM to all its processes at once, as systemd does: the sentinel leaves it to the
# cluster's own process, and a worker brings what it has begun to its end.


class PatientSentinel(Sentinel):  # type: ignore[misc]
    def start(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        super().start()

    def spawn_process(self, target: Callable[..., object], *args: object) -> object:
        """Which must not ignore it too: it is how django-q ends them."""
        global _countdown
        _countdown = args[2] if target is django_q.worker.worker else None
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            return super().spawn_process(target, *args)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


def hear_sigterm(**_: object) -> None:
    """A worker, when it has been forked."""
    signal.signal(signal.SIGTERM, _end_soon)


def _end_soon(number: int, frame: object) -> None:
    global _told_to_end
    _told_to_end = True
    # For one that hangs: django-q sends it SIGTERM too.
    signal.alarm(math.ceil(settings.SHUTDOWN_SECONDS) + GRACE_SECONDS)


def outstay(seconds: float) -> None:
    """A slice that outlasts its time on purpose is not frozen: both of django-q's clocks, in this process and in the
    sentinel, begin anew."""
    if _countdown is not None:
        signal.alarm(math.ceil(seconds))
        # Whole: it is counted down by whole seconds (guard_cycle), and compared with 0.
        _countdown.value = math.ceil(seconds) + GRACE_SECONDS


def leave_if_told() -> None:
    if _told_to_end:
        sys.exit()


class EventServiceCluster(Cluster):  # type: ignore[misc]
    """django-q's cluster, whose workers hear of its stop at once and not at the end of their slices."""

    def __init__(self) -> None:
        global _stop_asked
        _stop_asked = Event()
        super().__init__()

    def stop(self) -> bool:
        if _stop_asked is not None:
            _stop_asked.set()
        return bool(super().stop())


def run_cluster() -> None:
    """Until SIGTERM or SIGINT."""
    start_chains()
    schedule_each_minute()
    _spare_the_collector()
    post_spawn.connect(hear_sigterm)
    django_q.cluster.Sentinel = PatientSentinel  # it has no other way to be given one
    cluster = EventServiceCluster()
    cluster.start()
    cluster.sentinel.join()


def schedule_each_minute() -> None:
    """After `start_chains`. Nothing in django-q's table keeps machines that start together from adding one each: they
    take turns by the slots that they share."""
    with transaction.atomic():
        list(own_slots().select_for_update().order_by("name"))
        # A schedule that names no cluster is run by the clusters of one name only.
        Schedule.objects.filter(name__in=EACH_MINUTE, cluster=None).update(cluster=cluster_name())
        for name, func in EACH_MINUTE.items():
            whose = {"name": name, "cluster": cluster_name()}
            same = Schedule.objects.filter(**whose).order_by("id").values_list("id", flat=True)
            Schedule.objects.filter(id__in=list(same)[1:]).delete()
            Schedule.objects.update_or_create(
                **whose, defaults={"func": func, "schedule_type": Schedule.MINUTES, "minutes": 1}
            )


def _spare_the_collector() -> None:
    """The workers, forked from here, share what is loaded now: the collector must neither visit nor copy it. And
    a batch makes thousands of objects that live until it is written: by default they would be visited hundreds
    of times meanwhile (a tenth of the engine's time)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)

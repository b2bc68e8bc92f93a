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
import os
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import Event
from multiprocessing.synchronize import Event as EventType
from typing import Protocol

import structlog
from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import F, Q
from django_q.cluster import Cluster
from django_q.models import Schedule
from django_q.tasks import async_task

from eventservice.kernel.ids import new_id
from eventservice.kernel.now import DbNow
from eventservice.models import Slot
from eventservice.wiring import build_dispatcher, build_engine

log = structlog.get_logger(__name__)

SEAT_LEASE = timedelta(seconds=8)
RENEW_SECONDS = 2.5
WAIT_FOR_SEAT_SECONDS = 0.25


class Role(Protocol):
    """What a worker does: one step at a time, none longer than `longest_nap` when there is nothing to do."""

    def step(self, longest_nap: float) -> object: ...

    def stop(self, grace_seconds: float) -> None: ...


ROLES: dict[str, Callable[[], Role]] = {"engine": build_engine, "dispatcher": build_dispatcher}


def slot_name(role: str) -> str:
    return f"{settings.Q_CLUSTER['cluster_name']}/{role}"


def run_slice(slot: str, ticket: int) -> None:
    """The task."""
    if stopping():
        # The next cluster finds it where this one did.
        async_task(run_slice, slot, ticket)
        return
    with transaction.atomic():
        taken = Slot.objects.filter(name=slot, ticket=ticket).update(ticket=F("ticket") + 1, taken_at=DbNow())
        if not taken:
            return
        async_task(run_slice, slot, ticket + 1)
    worker().run_for(settings.SLICE_SECONDS)


def start_chains() -> None:
    """A fresh ticket for every slot: what was queued before is void."""
    for role in ROLES:
        Slot.objects.get_or_create(name=slot_name(role))
        _issue(slot_name(role))


def mend_chains() -> None:
    """Each minute (a django-q schedule): a chain that stands still, whatever broke it, is begun anew."""
    stale = DbNow(-timedelta(seconds=3 * settings.SLICE_SECONDS + settings.SHUTDOWN_SECONDS))
    for name in Slot.objects.filter(taken_at__lt=stale).values_list("name", flat=True):
        log.warning("chain_mended", slot=name)
        _issue(name)


def _issue(slot: str) -> None:
    with transaction.atomic():
        Slot.objects.filter(name=slot).update(ticket=F("ticket") + 1, taken_at=DbNow())
        async_task(run_slice, slot, Slot.objects.get(name=slot).ticket)


class Worker:
    """This process: its seat, and the role that it plays there."""

    def __init__(self) -> None:
        self.id: uuid.UUID = new_id()
        self.seat: str | None = None
        self.role: Role | None = None
        self._renew_at = 0.0

    def run_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not stopping():
            try:
                self._step(left)
            except DatabaseError:
                log.exception("slice_troubled", seat=self.seat)
                time.sleep(min(left, 1.0))
        if stopping():
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
        if self.seat and not self._take(self.seat):
            # Another process took this one for dead.
            self.stand_up(grace_seconds=0)
        if self.seat is None:
            self._sit_down()
        return self.seat is not None

    def _sit_down(self) -> None:
        for name, build in ROLES.items():
            if self._take(slot_name(name)):
                self.seat, self.role = slot_name(name), build()
                log.info("seat_taken", seat=self.seat)
                return

    def _take(self, slot: str) -> bool:
        free = Q(owner_id=None) | Q(owner_id=self.id) | Q(lease_until__lt=DbNow())
        return bool(
            Slot.objects.filter(free, name=slot).update(owner_id=self.id, lease_until=DbNow(SEAT_LEASE))
        )

    def stand_up(self, grace_seconds: float) -> None:
        seat, role, self.seat, self.role = self.seat, self.role, None, None
        if role is not None:
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

_stop_asked: EventType | None = None


def stopping() -> bool:
    return _stop_asked is not None and _stop_asked.is_set()


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
    Schedule.objects.update_or_create(
        name="mend chains",
        defaults={
            "func": "eventservice.cluster.mend_chains",
            "schedule_type": Schedule.MINUTES,
            "minutes": 1,
        },
    )
    start_chains()
    _spare_the_collector()
    cluster = EventServiceCluster()
    cluster.start()
    cluster.sentinel.join()


def _spare_the_collector() -> None:
    """The workers, forked from here, share what is loaded now: the collector must neither visit nor copy it. And
    a batch makes thousands of objects that live until it is written: by default they would be visited hundreds
    of times meanwhile (a tenth of the engine's time)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)

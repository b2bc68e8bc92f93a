"""A worker process of the cluster: it plays one role, slice by slice, for as long as it holds the role's lease."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Protocol

from django.conf import settings

from eventservice.db.errors import tolerate_outage
from eventservice.db.leases import Fenced
from eventservice.kernel.ids import new_id
from eventservice.kernel.logging import get_logger
from eventservice.runtime.cluster_process import EXIT_GRACE_SECONDS, this_process
from eventservice.runtime.slots import RoleLease, cluster_name, filter_slots, slot_name
from eventservice.runtime.wiring import build_dispatcher, build_engine
from timers.membership import Membership
from timers.models import NodeRole

log = get_logger(__name__)

# As often as nodes send heartbeats by default: then both are written at the same time, and wake other processes once.
RENEW_LEASE_SECONDS = 2.0
# How long a worker without a role waits at most. It looks for a free one as often as others renew their leases.
STANDBY_POLL_SECONDS = 1.0


class WorkerRole(Protocol):
    """The work of a worker, one step at a time."""

    def step(self, max_wait: float, /) -> object:
        """Do the pending work, or wait up to `max_wait` seconds for some."""

    def stop(self, grace_seconds: float, /) -> None:
        """Hand over to other processes, and finish what has begun within the grace period."""

    def count_in_flight(self) -> int:
        """Return how many attempts have begun and are not recorded."""

    def count_unrecorded(self) -> int:
        """Return how many results are known and not recorded: those that are lost if the process ends now."""


def report_stop(role: WorkerRole, event: str = "role_stopped", **names: object) -> bool:
    """Log how a role has stopped. Return whether results are lost.

    Their attempts are resolved as interrupted, and so are those in flight.
    """
    results, in_flight = role.count_unrecorded(), role.count_in_flight()
    report = log.error if results else log.warning if in_flight else log.info
    report(event, lost_results=results, in_flight=in_flight, **names)
    return results > 0


ROLES: dict[str, Callable[[], WorkerRole]] = {
    "engine": lambda: build_engine(cluster_name()),
    "dispatcher": lambda: build_dispatcher(cluster_name()),
}


class Standby:
    """The node of a worker that waits for a role, by which operators see that it does."""

    def __init__(self) -> None:
        self._heartbeat_at = 0.0
        self._join()
        held = filter_slots(ROLES).order_by("name").values_list("name", "lease_until")
        log.info("standing_by", cluster=cluster_name(), held_until={name: str(until) for name, until in held})

    def _join(self) -> None:
        self._node = Membership(NodeRole.STANDBY, cluster_name())
        self._node.join()

    def heartbeat(self) -> None:
        if time.monotonic() < self._heartbeat_at:
            return
        try:
            self._node.heartbeat(0)
        except Fenced:
            self._join()
        self._heartbeat_at = time.monotonic() + settings.NODE_LEASE_SECONDS / 4

    def leave(self) -> None:
        self._node.leave()


class Worker:
    """The role of this process, and the lease by which it plays it."""

    def __init__(self) -> None:
        self.lease = RoleLease(owner_id=new_id())
        self.role: WorkerRole | None = None
        self._standby: Standby | None = None
        self._renew_at = 0.0
        self._stopping_role: WorkerRole | None = None
        self._has_lost_results = False

    def plays(self, role: str) -> bool:
        return self.lease.slot == slot_name(role)

    def run_for(self, seconds: float) -> None:
        """Play the role for that long, or wait for one. If the cluster stops meanwhile, give the role up."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not this_process.is_stopping():
            # However long the ticket or the step before has waited for the database.
            this_process.record_progress()
            with tolerate_outage(left):
                self._step(left)
        if this_process.is_stopping():
            this_process.extend_task_deadline(this_process.grace_left + EXIT_GRACE_SECONDS)
            self.release_role(this_process.grace_left)

    def release_role(self, grace_seconds: float) -> None:
        """Stop the role, and release its lease for another process."""
        role, self.role = self.role, None
        if role is not None:
            self._stopping_role = role
            with tolerate_outage():
                role.stop(grace_seconds)
            self._has_lost_results = report_stop(role, slot=self.lease.slot)
            self._stopping_role = None
        self.lease.release(crashed=this_process.is_orphaned)
        self._end_standby()

    def end(self) -> bool:
        """Release the role before the process ends. Return False if results are lost."""
        with tolerate_outage(0.0):
            self.release_role(this_process.grace_left)
        return not self._has_lost_results

    def report_loss(self) -> None:
        """Log that the process is ended before it could stop, and what is lost. Called by another thread."""
        if role := self._stopping_role or self.role:
            report_stop(role, "ended_before_it_stopped", slot=self.lease.slot)

    def _step(self, max_wait: float) -> None:
        self._keep_role()
        if self.role is not None:
            self._end_standby()
            self.role.step(max_wait)
        else:
            self._stand_by()
            until_next_look = max(0.0, self._renew_at - time.monotonic())
            this_process.wait_until_stopping(min(max_wait, STANDBY_POLL_SECONDS, until_next_look))

    def _stand_by(self) -> None:
        if self._standby is None:
            self._standby = Standby()
        self._standby.heartbeat()

    def _end_standby(self) -> None:
        if self._standby is not None:
            self._standby.leave()
            self._standby = None

    def _keep_role(self) -> None:
        """Renew the lease of the role, or look for a free role, every few seconds."""
        if time.monotonic() < self._renew_at:
            return
        self._renew_at = time.monotonic() + RENEW_LEASE_SECONDS
        if self.lease.slot is not None and not self.lease.acquire(self.lease.slot):
            # The lease expired and another process has acquired it. Attempts in flight are still this one's to record.
            self.release_role(settings.SHUTDOWN_SECONDS)
        if self.role is None:
            self._acquire_role()

    def _acquire_role(self) -> None:
        for name, build_role in ROLES.items():
            if self.lease.acquire(slot_name(name)):
                try:
                    self.role = build_role()
                except BaseException:
                    self.lease.release()  # another process may be able to play it
                    raise
                log.info("role_acquired", slot=self.lease.slot)
                return


@cache
def current_worker() -> Worker:
    """Return the worker of this process. django-q2 forks workers from a process that has none."""
    return Worker()

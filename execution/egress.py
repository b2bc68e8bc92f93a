"""Thousands of HTTP attempts at once, in one background thread around libcurl's multi interface.

Knows nothing of databases or statuses: attempts go in through `send`, outcomes come out of `collect`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from time import monotonic

from eventservice.kernel.logging import get_logger
from execution.addresses import AddressPolicy
from execution.dns import Lookup, look_up_host
from execution.loop import EgressLoop, compute_capacity
from execution.outcome import Attempt, Limits, Outcome

log = get_logger(__name__)

_CHUNK = 256  # attempts that are taken in at once, so that a burst holds up nothing that is under way


class EgressClosed(RuntimeError):
    """send() before start() or after close()."""


class Egress:
    """The thread-safe face of the loop. Make it anywhere; `start()` it after the last fork."""

    def __init__(
        self,
        policy: AddressPolicy,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        *,
        lookup: Lookup = look_up_host,
        ca_file: str | None = None,
    ) -> None:
        self._settings = (policy, limits, lookup, ca_file)
        self._changed = threading.Condition()
        self._outcomes: list[Outcome] = []
        self._woken = False
        self._loop: EgressLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def capacity(self) -> int:
        """How many connections this process can have at once."""
        return compute_capacity(self._settings[1])

    def start(self) -> None:
        if self._thread is not None:
            raise RuntimeError("this egress was started before; make a new one")
        self._loop = EgressLoop(*self._settings, self._publish)
        self._thread = threading.Thread(target=self._loop.run, name="egress", daemon=True)
        self._thread.start()

    def send(self, attempts: Iterable[Attempt]) -> None:
        """Takes the attempts and returns at once.

        Their deadlines count from now: what is sent beyond `capacity` waits for a place at its own cost, so
        let no more be under way.
        """
        batch = list(attempts)
        with self._changed:
            if self._loop is None:
                raise EgressClosed("the egress is not running: start() it, and send nothing after close()")
            now = monotonic()
            for start in range(0, len(batch), _CHUNK):
                self._loop.submit((now, batch[start : start + _CHUNK]))

    def collect(self, timeout: float) -> list[Outcome]:
        """All outcomes that have arrived; waits up to `timeout` seconds for the first, or for wake()."""
        with self._changed:
            if not self._outcomes:
                self._changed.wait_for(lambda: self._outcomes or self._woken, timeout)
            self._woken = False
            outcomes, self._outcomes = self._outcomes, []
            return outcomes

    def wake(self) -> None:
        """Makes the collect() that waits, or else the next one, return."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        """Takes no more; what is not done ends as Interrupted and can be collected."""
        with self._changed:
            loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        loop.stop()
        self._thread.join(10)
        if self._thread.is_alive():
            log.error("egress_does_not_end")  # it ends with the process

    def _publish(self, outcomes: list[Outcome]) -> None:
        with self._changed:
            self._outcomes += outcomes
            self._changed.notify_all()


__all__ = ["Egress", "EgressClosed", "Limits"]

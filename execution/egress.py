"""Make thousands of HTTP attempts at once, in one background thread around libcurl's multi interface.

The egress knows nothing of databases or statuses: attempts go in through `send`, outcomes come out of `collect`.
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

_CHUNK = 256  # attempts that the loop accepts in one step, so that a burst does not delay those in progress


class EgressClosed(RuntimeError):
    """Raised by send() before start() or after close()."""


class Egress:
    """The thread-safe interface to the event loop. Create it anywhere, but `start()` it after the last fork."""

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
        self._is_woken = False
        self._loop: EgressLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def capacity(self) -> int:
        """How many connections this process can have open at once."""
        return compute_capacity(self._settings[1])

    def start(self) -> None:
        if self._thread is not None:
            raise RuntimeError("This egress was already started. Create a new one.")
        self._loop = EgressLoop(*self._settings, self._publish)
        self._thread = threading.Thread(target=self._loop.run, name="egress", daemon=True)
        self._thread.start()

    def send(self, attempts: Iterable[Attempt]) -> None:
        """Accept attempts and return at once.

        Their deadlines count from now. Attempts beyond `capacity` wait for a free connection within their timeout, so
        callers should keep no more in progress.
        """
        batch = list(attempts)
        with self._changed:
            if self._loop is None:
                raise EgressClosed(
                    "The egress is not running. Call start() before send(), and do not call send() after close()."
                )
            now = monotonic()
            for start in range(0, len(batch), _CHUNK):
                self._loop.submit((now, batch[start : start + _CHUNK]))

    def collect(self, timeout: float) -> list[Outcome]:
        """Return all outcomes that have arrived. Wait up to `timeout` seconds for the first one, or for wake()."""
        with self._changed:
            if not self._outcomes:
                self._changed.wait_for(lambda: self._outcomes or self._is_woken, timeout)
            self._is_woken = False
            outcomes, self._outcomes = self._outcomes, []
            return outcomes

    def wake(self) -> None:
        """Make the current or next collect() return at once."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop. Attempts in progress end as Interrupted, and their outcomes can still be collected."""
        with self._changed:
            loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        loop.stop()
        self._thread.join(10)
        if self._thread.is_alive():
            log.error("egress_thread_did_not_stop")  # it ends with the process

    def _publish(self, outcomes: list[Outcome]) -> None:
        with self._changed:
            self._outcomes += outcomes
            self._changed.notify_all()


__all__ = ["Egress", "EgressClosed", "Limits"]

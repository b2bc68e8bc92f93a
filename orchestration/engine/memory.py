"""The engine's answer to too little memory: smaller batches, down to single calls, and finding those that never fit."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from django.db import OperationalError

from timers.port import LARGE_REQUEST_BYTES, HeldBack, Timer

# A call that did not fit alone waits for so long, in case what is in flight needs the memory now. It fails the third time.
POSTPONE_SECONDS = 1.0
MAX_FAILURES = 3
# After so many batches that fit, the next may be twice as large.
BATCHES_BEFORE_GROWTH = 20
# A batch that is as large as this is not limited by memory.
UNLIMITED = 1_000_000

CallKey = tuple[uuid.UUID, uuid.UUID]


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether this process, or its database, had too little memory. Some drivers have no error of their own."""
    return isinstance(error, MemoryError) or (
        isinstance(error, OperationalError) and "out of memory" in str(error).lower()
    )


class MemoryGuard:
    """How many large calls may start at once, as learned from those that did not fit. Small calls pass them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_calls = UNLIMITED
        self._clock = clock
        self._limits_all = False  # small calls did not fit either
        self._fitting = 0
        self._failures: Counter[CallKey] = Counter()
        self._postponed: dict[CallKey, float] = {}
        self._refused_tenants: set[uuid.UUID] = set()  # by the last batch

    def restrict(self, held_back: HeldBack) -> HeldBack:
        """Hold back, for one search, large requests of tenants that had more of them than the last batch could take.

        Otherwise a search would find nothing but these if there are many, and never the small ones behind them.
        """
        refused, self._refused_tenants = self._refused_tenants, set()
        if not refused:
            return held_back
        large = held_back.large or HeldBack()
        return replace(held_back, large=replace(large, tenants={*large.tenants, *refused}))

    def guard(self, admit: Callable[[Timer], bool]) -> Callable[[Timer], bool]:
        """Return `admit` for one batch, restricted to calls that are not postponed, and as many as may start at once.

        Timers that are refused stay scheduled, so that small calls are found behind a large one.
        """
        if self.max_calls == UNLIMITED and not self._postponed:
            return admit
        now = self._clock()
        self._postponed = {key: until for key, until in self._postponed.items() if until > now}
        left = self.max_calls

        def admit_few(timer: Timer) -> bool:
            nonlocal left
            if not self._is_limited(timer):
                return admit(timer)
            if left < 1 or (timer.tenant_id, timer.service_call_id) in self._postponed:
                self._refused_tenants.add(timer.tenant_id)
                return False
            is_admitted = admit(timer)
            left -= is_admitted
            return is_admitted

        return admit_few

    def _is_limited(self, timer: Timer) -> bool:
        return self._limits_all or timer.request_bytes >= LARGE_REQUEST_BYTES

    def record_fit(self, started: Sequence[object]) -> None:
        """Note that a batch fitted, and let the batches grow again if many have."""
        if self.max_calls == UNLIMITED or not started:
            return
        self._fitting += 1
        if self._fitting >= BATCHES_BEFORE_GROWTH:
            self._fitting = 0
            self.max_calls = min(2 * self.max_calls, UNLIMITED)

    def record_failure(self, due: Sequence[Timer], limit: int) -> Timer | None:
        """Let the next batch have half as many large calls, or half as many calls if it had no large ones.

        Return the timer of a large call that has not fitted three times, although there was no other.
        """
        self._fitting = 0
        large = [timer for timer in due if timer.request_bytes >= LARGE_REQUEST_BYTES]
        self._limits_all = not large
        blamed = large or due
        if len(blamed) != 1:
            self.max_calls = max(1, (len(blamed) or limit) // 2)
            return None
        self.max_calls = 1
        (timer,) = blamed
        key = timer.tenant_id, timer.service_call_id
        self._failures[key] += 1
        # Also if it is to fail: that may need more memory than there is now.
        self._postponed[key] = self._clock() + POSTPONE_SECONDS
        if self._failures[key] < MAX_FAILURES or not large:
            return None
        return timer

    def forget(self, timer: Timer) -> None:
        """Forget a call that has failed."""
        self._failures.pop((timer.tenant_id, timer.service_call_id), None)

"""Look up the addresses of host names without blocking the event loop."""

from __future__ import annotations

import socket
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple

Lookup = Callable[[str], Sequence[str]]

# The share of the threads that one tenant may occupy: an unresponsive name server blocks a thread for many seconds.
_MAX_TENANT_SHARE: Final = 1 / 4


def look_up_host(host: str) -> list[str]:
    """Return all addresses of a host name, in the system's order."""
    # As bytes, because Python would pass a string through its own IDNA codec first.
    found = socket.getaddrinfo(host.encode("ascii"), None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class LookupResult(NamedTuple):
    """The addresses that a lookup found, or the error that it raised."""

    host: str
    addresses: tuple[str, ...] = ()
    error: Exception | None = None

    @property
    def is_final(self) -> bool:
        """Whether this is an answer about the name, even if it has no address, and not a failure to get one."""
        unknown = (socket.EAI_NONAME, socket.EAI_NODATA)
        return self.error is None or (isinstance(self.error, socket.gaierror) and self.error.errno in unknown)


class Resolver:
    """Runs lookups in daemon threads. getaddrinfo() has no timeout, so whoever waits for a result may stop waiting.

    libcurl's own resolver cannot be used: its results are visible to libcurl alone. We check all addresses of a name
    before connecting to any, look up a name once for everybody who waits for it, and keep a lookup that hangs from
    delaying others: each tenant has a queue and a share of the threads, and lookups that nobody waits for are dropped.
    """

    def __init__(self, lookup: Lookup, threads: int, deliver: Callable[[LookupResult], None]) -> None:
        self._lookup = lookup
        self._max_threads = threads
        self._max_threads_of_tenant = max(1, int(threads * _MAX_TENANT_SHARE))
        self._deliver = deliver
        self._lock = threading.Lock()
        # Host names by tenant, in the order of their lookup. A name may be in several queues.
        self._queues: dict[Hashable, OrderedDict[str, None]] = {}
        self._in_progress: set[str] = set()
        self._busy: Counter[Hashable] = Counter()  # number of threads, by the tenant they work for
        self._threads = 0

    def request(self, host: str, tenant: Hashable, *, first: bool = False) -> None:
        """Queue a lookup and return at once. The result is passed to `deliver` in another thread."""
        with self._lock:
            if host in self._in_progress:
                return
            queue = self._queues.setdefault(tenant, OrderedDict())
            queue[host] = None
            if first:
                queue.move_to_end(host, last=False)
            if self._threads == self._max_threads or self._busy[tenant] >= self._max_threads_of_tenant:
                return
            self._threads += 1
        try:
            threading.Thread(target=self._run_lookups, name="egress-dns", daemon=True).start()
        except RuntimeError:  # the system allows no more threads; a running one will do this lookup
            with self._lock:
                self._threads -= 1

    def cancel(self, host: str) -> bool:
        """Remove a lookup from all queues. Return False if it is in progress, so that its result is still delivered."""
        with self._lock:
            if host in self._in_progress:
                return False
            self._remove_from_queues(host)
            return True

    def close(self) -> None:
        """Drop all queued lookups. A lookup that hangs ends when the system gives up on it."""
        with self._lock:
            self._queues.clear()

    def _run_lookups(self) -> None:
        while (job := self._take_next()) is not None:
            tenant, host = job
            result = self._look_up(host)
            with self._lock:
                self._in_progress.discard(host)
                self._busy[tenant] -= 1
            self._deliver(result)

    def _take_next(self) -> tuple[Hashable, str] | None:
        """Take a lookup of the tenant that occupies the fewest threads. Return None when this thread should end."""
        with self._lock:
            self._busy = +self._busy
            tenants = [tenant for tenant in self._queues if self._busy[tenant] < self._max_threads_of_tenant]
            if not tenants:
                self._threads -= 1
                return None
            tenant = min(tenants, key=self._busy.__getitem__)
            host = next(iter(self._queues[tenant]))
            self._remove_from_queues(host)
            self._in_progress.add(host)
            self._busy[tenant] += 1
            return tenant, host

    def _remove_from_queues(self, host: str) -> None:
        for tenant, queue in [*self._queues.items()]:
            queue.pop(host, None)
            if not queue:
                del self._queues[tenant]

    def _look_up(self, host: str) -> LookupResult:
        try:
            return LookupResult(host, tuple(self._lookup(host)))
        except Exception as error:  # noqa: BLE001 - whatever it raises, somebody waits for the result
            return LookupResult(host, error=error)

"""The finding of a name's addresses."""

from __future__ import annotations

import socket
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple

Lookup = Callable[[str], Sequence[str]]

# Of the threads, what one tenant's names may take: a name whose servers do not answer takes one for many seconds.
_SHARE: Final = 1 / 4


def look_up_host(host: str) -> list[str]:
    """All addresses of a name, in the system's order. Bytes keep Python's own IDNA codec out of it."""
    found = socket.getaddrinfo(host.encode("ascii"), None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class LookupResult(NamedTuple):
    """What a lookup came to: addresses, or the error that it raised."""

    host: str
    addresses: tuple[str, ...] = ()
    error: Exception | None = None

    @property
    def is_final(self) -> bool:
        """Whether it tells what the name leads to, be it nothing; else nobody who knows has answered."""
        unknown = (socket.EAI_NONAME, socket.EAI_NODATA)
        return self.error is None or (isinstance(self.error, socket.gaierror) and self.error.errno in unknown)


class Resolver:
    """Lookups in daemon threads, because getaddrinfo() takes no deadline: whoever asked may stop waiting.

    Not libcurl's own resolver: it answers only to libcurl, and we judge all of a name's addresses before
    any is dialled, look a name up once for all that wait for it, and let a hanging lookup hold up nothing:
    each tenant has its own line and its share of the threads, and who has given up leaves the line.
    """

    def __init__(self, lookup: Lookup, threads: int, deliver: Callable[[LookupResult], None]) -> None:
        self._lookup = lookup
        self._limit = threads
        self._share = max(1, int(threads * _SHARE))
        self._deliver = deliver
        self._lock = threading.Lock()
        self._lines: dict[Hashable, OrderedDict[str, None]] = {}  # by tenant; a name may stand in several
        self._looked_up: set[str] = set()
        self._busy: Counter[Hashable] = Counter()  # threads, by the tenant whose name they look up
        self._threads = 0

    def ask(self, host: str, tenant: Hashable, *, first: bool = False) -> None:
        """Never blocks; the answer comes through `deliver`, from another thread."""
        with self._lock:
            if host in self._looked_up:
                return
            line = self._lines.setdefault(tenant, OrderedDict())
            line[host] = None
            if first:
                line.move_to_end(host, last=False)
            if self._threads == self._limit or self._busy[tenant] >= self._share:
                return
            self._threads += 1
        try:
            threading.Thread(target=self._work, name="egress-dns", daemon=True).start()
        except RuntimeError:  # the system grants no more threads: those that run will get to it
            with self._lock:
                self._threads -= 1

    def forget(self, host: str) -> bool:
        """Nobody waits for it any more. False when it is being looked up, so that its answer will come."""
        with self._lock:
            if host in self._looked_up:
                return False
            self._take_from_lines(host)
            return True

    def close(self) -> None:
        """What was not looked up yet never is; a lookup that hangs ends when the system lets it go."""
        with self._lock:
            self._lines.clear()

    def _work(self) -> None:
        while (question := self._next_question()) is not None:
            tenant, host = question
            answer = self._answer(host)
            with self._lock:
                self._looked_up.discard(host)
                self._busy[tenant] -= 1
            self._deliver(answer)

    def _next_question(self) -> tuple[Hashable, str] | None:
        """Of those who are below their share, who has the fewest threads comes next."""
        with self._lock:
            self._busy = +self._busy
            tenants = [tenant for tenant in self._lines if self._busy[tenant] < self._share]
            if not tenants:
                self._threads -= 1
                return None
            tenant = min(tenants, key=self._busy.__getitem__)
            host = next(iter(self._lines[tenant]))
            self._take_from_lines(host)
            self._looked_up.add(host)
            self._busy[tenant] += 1
            return tenant, host

    def _take_from_lines(self, host: str) -> None:
        for tenant, line in [*self._lines.items()]:
            line.pop(host, None)
            if not line:
                del self._lines[tenant]

    def _answer(self, host: str) -> LookupResult:
        try:
            return LookupResult(host, tuple(self._lookup(host)))
        except Exception as error:  # noqa: BLE001 - whatever it raises, somebody waits for an answer
            return LookupResult(host, error=error)

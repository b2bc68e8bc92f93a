"""The finding of a name's addresses."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

Lookup = Callable[[str], Sequence[str]]


def system_lookup(host: str) -> list[str]:
    """All addresses of a name, in the system's order. Bytes keep Python's own IDNA codec out of it."""
    found = socket.getaddrinfo(host.encode("ascii"), None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Answer(NamedTuple):
    """What a lookup came to: addresses, or the error that it raised."""

    host: str
    addresses: tuple[str, ...] = ()
    error: Exception | None = None


class Resolver:
    """Lookups in daemon threads, because getaddrinfo() takes no deadline: whoever asked may stop waiting.

    Not libcurl's own resolver: it answers only to libcurl, and we judge all of a name's addresses before
    any is dialled, look a name up once for all that wait for it, and let a hanging lookup hold up nothing.
    """

    def __init__(self, lookup: Lookup, threads: int, deliver: Callable[[Answer], None]) -> None:
        self._lookup = lookup
        self._limit = threads
        self._deliver = deliver
        self._lock = threading.Lock()
        self._questions: deque[str] = deque()
        self._threads = 0

    def ask(self, host: str) -> None:
        """Never blocks; the answer comes through `deliver`, from another thread."""
        with self._lock:
            self._questions.append(host)
            if self._threads == self._limit:
                return
            self._threads += 1
        try:
            threading.Thread(target=self._work, name="egress-dns", daemon=True).start()
        except RuntimeError:  # the system grants no more threads: those that run will get to it
            with self._lock:
                self._threads -= 1

    def close(self) -> None:
        """What was not looked up yet never is; a lookup that hangs ends when the system lets it go."""
        with self._lock:
            self._questions.clear()

    def _work(self) -> None:
        while (host := self._next_question()) is not None:
            self._deliver(self._answer(host))

    def _next_question(self) -> str | None:
        with self._lock:
            if self._questions:
                return self._questions.popleft()
            self._threads -= 1
            return None

    def _answer(self, host: str) -> Answer:
        try:
            return Answer(host, tuple(self._lookup(host)))
        except Exception as error:  # noqa: BLE001 - whatever it raises, somebody waits for an answer
            return Answer(host, error=error)


__all__ = ["Answer", "Lookup", "Resolver", "system_lookup"]

"""libcurl's multi handle under epoll, and the bell that wakes it from other threads."""

from __future__ import annotations

import math
import os
import select
import threading
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic
from typing import Any, Final

import pycurl

from eventservice.kernel.logging import get_logger

log = get_logger(__name__)


class Waker:
    """Wakes the loop from other threads; silent once closed, for lookups may outlive the loop."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._open = True

    def ring(self) -> None:
        with self._lock:
            if self._open:
                os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        with self._lock:
            self._open = False
            os.close(self.fd)


class Multi:
    """libcurl's multi handle and the epoll set that watches its sockets.

    `CurlMulti.select` goes through select(), which ends at descriptor 1,023; and perform() looks at every
    transfer on every call, where socket_action() looks at those that something happened to.
    """

    def __init__(self, bell: int, connections: int) -> None:
        self._bell = bell
        self.timer = math.inf  # when libcurl wants to be called though nothing happened
        self._masks: dict[int, int] = {}
        self._resting: set[int] = set()
        self._poller = select.epoll()
        self._poller.register(bell, select.EPOLLIN)
        self._handle = pycurl.CurlMulti()
        self._handle.setopt(pycurl.M_SOCKETFUNCTION, self._on_socket)
        self._handle.setopt(pycurl.M_TIMERFUNCTION, self._on_timer)
        # Kept connections count too: at the bound the oldest idle one makes room.
        self._handle.setopt(pycurl.M_MAXCONNECTS, connections)
        self._handle.setopt(pycurl.M_MAX_TOTAL_CONNECTIONS, connections)
        self.add = self._handle.add_handle
        self.remove = self._handle.remove_handle

    def _on_socket(self, what: int, fd: int, _multi: object, _data: object) -> None:
        mask = _EPOLL_MASKS.get(what)
        if mask is None:
            # Mostly the connection is used again at once, and what stays watched needs no system call then.
            self._resting.add(fd)
            return
        self._resting.discard(fd)
        known = self._masks.get(fd)
        if known == mask:
            return
        try:
            (self._poller.modify if known else self._poller.register)(fd, mask)
            self._masks[fd] = mask
        except OSError:
            log.exception("socket_not_watched", socket=fd)  # its attempt ends at its deadline

    def on_dial(self, fd: int) -> None:
        """A new socket: whatever is known of this number was about one that is closed, and watched no more."""
        self._masks.pop(fd, None)
        self._resting.discard(fd)

    def _on_timer(self, milliseconds: int) -> None:
        self.timer = math.inf if milliseconds < 0 else monotonic() + milliseconds / 1000

    def poll(self, patience: float | None) -> bool:
        """Waits for something to happen and lets libcurl act on it; False when nothing did."""
        events = self._poller.poll(patience)
        for fd, _mask in events:
            if fd == self._bell:
                os.eventfd_read(fd)
            elif fd in self._resting:  # libcurl will see for itself when it wants to use it
                self.on_dial(fd)
                with suppress(OSError):
                    self._poller.unregister(fd)
            else:
                self._handle.socket_action(fd, 0)
        if monotonic() >= self.timer:
            self.timer = math.inf
            self._handle.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        return bool(events)

    def finished(self) -> Iterator[tuple[Any, int, str]]:
        """Handle, libcurl's result code and its words for it."""
        more = 1
        while more:
            try:
                more, succeeded, failed = self._handle.info_read()
            except UnicodeError:
                # Words quoted from a server; its transfer, and what has ended with it, end as overdue.
                log.warning("message_not_decoded")
                return
            for curl in succeeded:
                yield curl, 0, ""
            yield from failed

    def close(self) -> None:
        with suppress(pycurl.error):  # closed before: starting over failed half-way
            self._handle.close()
        self._poller.close()


_EPOLL_MASKS: Final = {
    pycurl.POLL_IN: select.EPOLLIN,
    pycurl.POLL_OUT: select.EPOLLOUT,
    pycurl.POLL_INOUT: select.EPOLLIN | select.EPOLLOUT,
}

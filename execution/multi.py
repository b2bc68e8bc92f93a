"""libcurl's multi interface on epoll, and the waker that interrupts its wait from other threads."""

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
    """Wakes the event loop from other threads. It does nothing once closed: lookups may outlive the loop."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._open = True

    def wake(self) -> None:
        with self._lock:
            if self._open:
                os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        with self._lock:
            self._open = False
            os.close(self.fd)


class Multi:
    """libcurl's multi handle with the epoll set that watches its sockets.

    `CurlMulti.select` uses select(), which cannot watch descriptors above 1,023. And perform() visits every transfer on
    every call, while socket_action() only visits those that something happened to.
    """

    def __init__(self, waker_fd: int, max_connections: int) -> None:
        self._waker_fd = waker_fd
        self.timer = math.inf  # when libcurl wants to be called even if nothing has happened
        self._masks: dict[int, int] = {}
        self._unused: set[int] = (
            set()
        )  # sockets that libcurl does not use at the moment, but that are still watched
        self._poller = select.epoll()
        self._poller.register(waker_fd, select.EPOLLIN)
        self._handle = pycurl.CurlMulti()
        self._handle.setopt(pycurl.M_SOCKETFUNCTION, self._on_socket)
        self._handle.setopt(pycurl.M_TIMERFUNCTION, self._on_timer)
        # Connections that are kept for reuse count too: at the limit the oldest idle one is closed.
        self._handle.setopt(pycurl.M_MAXCONNECTS, max_connections)
        self._handle.setopt(pycurl.M_MAX_TOTAL_CONNECTIONS, max_connections)
        self.add = self._handle.add_handle
        self.remove = self._handle.remove_handle

    def _on_socket(self, what: int, fd: int, _multi: object, _data: object) -> None:
        mask = _EPOLL_MASKS.get(what)
        if mask is None:
            # Most connections are used again at once. While the socket stays registered, that needs no system call.
            self._unused.add(fd)
            return
        self._unused.discard(fd)
        known = self._masks.get(fd)
        if known == mask:
            return
        try:
            (self._poller.modify if known else self._poller.register)(fd, mask)
            self._masks[fd] = mask
        except OSError:
            log.exception("socket_not_watched", socket=fd)  # its attempt ends at its deadline

    def forget_socket(self, fd: int) -> None:
        """Forget what is known of a descriptor: libcurl opens a new socket, so the previous one of that number is closed."""
        self._masks.pop(fd, None)
        self._unused.discard(fd)

    def _on_timer(self, milliseconds: int) -> None:
        self.timer = math.inf if milliseconds < 0 else monotonic() + milliseconds / 1000

    def poll(self, timeout: float | None) -> bool:
        """Wait for events and let libcurl handle them. Return False if there were none."""
        events = self._poller.poll(timeout)
        for fd, _mask in events:
            if fd == self._waker_fd:
                os.eventfd_read(fd)
            elif fd in self._unused:  # libcurl notices by itself when it wants to use the connection again
                self.forget_socket(fd)
                with suppress(OSError):
                    self._poller.unregister(fd)
            else:
                self._handle.socket_action(fd, 0)
        if monotonic() >= self.timer:
            self.timer = math.inf
            self._handle.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        return bool(events)

    def take_finished(self) -> Iterator[tuple[Any, int, str]]:
        """Yield each finished handle with libcurl's result code and error message."""
        more = 1
        while more:
            try:
                more, succeeded, failed = self._handle.info_read()
            except UnicodeError:
                # The message quotes a server. This transfer, and those reported with it, end as overdue.
                log.warning("message_not_decoded")
                return
            for curl in succeeded:
                yield curl, 0, ""
            yield from failed

    def close(self) -> None:
        with suppress(pycurl.error):  # closed already: a recovery failed half-way
            self._handle.close()
        self._poller.close()


_EPOLL_MASKS: Final = {
    pycurl.POLL_IN: select.EPOLLIN,
    pycurl.POLL_OUT: select.EPOLLOUT,
    pycurl.POLL_INOUT: select.EPOLLIN | select.EPOLLOUT,
}

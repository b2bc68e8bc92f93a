"""Connections that are kept for reuse: which attempts may share them, and whether one of them can still be used.

A server that does not read the body of a request takes it for the next request. Whoever sends the next request on that
connection gets the wrong response, and may have their headers read by others. So attempts share connections only within
a pool, which belongs to one tenant (and credential) at one destination.

libcurl keeps the connections, and reuses them by host name. Each pool has a host name of its own, which attempts connect
to in place of the host of their URL (CONNECT_TO) and which has the same addresses (RESOLVE).
"""

from __future__ import annotations

import select
import socket
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from itertools import count
from typing import Final, NamedTuple

from execution.url_rules import Origin

# The pools that are remembered. The connections of a forgotten one are closed when they have been idle for a while.
MAX_POOLS: Final = 16_384
# If a server closes connections right after its responses, requests are lost on their way. Its connections are not kept
# for this time.
_NO_REUSE_SECONDS: Final = 30.0
_SOON_SECONDS: Final = 1.0

_NO_SOCKET: Final = -1
_POLL_EVENTS: Final = select.POLLIN | select.POLLRDHUP


class SocketAddress(NamedTuple):
    """Both ends of a connection, which identify it as long as it is open."""

    peer_ip: str
    local_ip: str
    peer_port: int
    local_port: int


class ConnectionPool:
    """The host name under which libcurl keeps the connections of one pool, with its addresses."""

    __slots__ = ("_addresses", "_no_reuse_until", "connect_to", "host", "resolve")

    def __init__(self, number: int) -> None:
        self.host = f"pool-{number}.invalid"
        self.connect_to = [f"::{self.host}:"]  # the value of libcurl's option CONNECT_TO
        self.resolve: list[str] = []  # the value of libcurl's option RESOLVE
        self._addresses = ""
        self._no_reuse_until = 0.0

    def set_addresses(self, addresses: str, port: int) -> None:
        if addresses != self._addresses:
            self._addresses = addresses
            self.resolve = [f"+{self.host}:{port}:{addresses}"]

    def allows_reuse(self, now: float) -> bool:
        return now >= self._no_reuse_until

    def suspend_reuse(self, now: float) -> None:
        """Keep no connections for a while: the server has closed one that it was expected to keep."""
        self._no_reuse_until = now + _NO_REUSE_SECONDS


class ConnectionPools:
    """The pools of all tenants and destinations. The least recently used are forgotten beyond MAX_POOLS."""

    def __init__(self) -> None:
        self._pools: OrderedDict[tuple[Origin, Hashable], ConnectionPool] = OrderedDict()
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._pools)

    def get(self, origin: Origin, sharers: Hashable) -> ConnectionPool:
        """Return the pool of those who may share connections to this origin."""
        key = (origin, sharers)
        pool = self._pools.get(key)
        if pool is not None:
            self._pools.move_to_end(key)
            return pool
        if len(self._pools) >= MAX_POOLS:
            self._pools.popitem(last=False)
        pool = self._pools[key] = ConnectionPool(next(self._numbers))
        return pool


class KeptConnection:
    """A connection that libcurl has opened, and what is known of its use."""

    __slots__ = ("_idle_since", "_is_spoiled", "_pool", "_usable_until", "fd")

    def __init__(self, fd: int, pool: ConnectionPool) -> None:
        self.fd = fd
        self._pool = pool
        self._is_spoiled = False
        self._idle_since = self._usable_until = 0.0

    def spoil(self) -> None:
        """Prevent the reuse of the connection: the server may take the rest of a request for the next one."""
        self._is_spoiled = True

    def release(self, now: float, idle_seconds: float) -> None:
        """Record that a response is complete, and that the connection may be reused for some seconds."""
        self._idle_since = now
        self._usable_until = now + idle_seconds

    def is_usable(self, pool: ConnectionPool, now: float) -> bool:
        """Return whether a request of this pool may be sent. Nothing may have arrived: neither bytes nor the end."""
        if self._pool is not pool or self._is_spoiled or now > self._usable_until:
            return False
        if not _has_input(self.fd):
            return True
        if now - self._idle_since < _SOON_SECONDS:
            pool.suspend_reuse(now)
        return False


class Connections:
    """The connections that libcurl has opened, by their addresses.

    libcurl does not tell when it closes one. It is forgotten when its file descriptor is used again, so there are no
    more of them than there may be open files.
    """

    def __init__(self) -> None:
        self._by_address: dict[SocketAddress, KeptConnection] = {}
        self._addresses: dict[int, SocketAddress] = {}  # by file descriptor

    def add(self, address: SocketAddress, fds: Sequence[int], pool: ConnectionPool) -> KeptConnection:
        """Record a new connection, whose socket is one of the given ones: an attempt may try several addresses."""
        fd = fds[0] if len(fds) == 1 else _find_socket(address, fds)
        connection = self._by_address[address] = KeptConnection(fd, pool)
        if fd == _NO_SOCKET:
            connection.spoil()
        else:
            self._addresses[fd] = address
        return connection

    def find(self, address: SocketAddress) -> KeptConnection | None:
        return self._by_address.get(address)

    def forget_socket(self, fd: int) -> None:
        """Forget the connection whose socket had this file descriptor, which was closed."""
        address = self._addresses.pop(fd, None)
        # Another connection may have the same addresses by now.
        if address is not None and (found := self._by_address.get(address)) and found.fd == fd:
            del self._by_address[address]

    def clear(self) -> None:
        self._by_address.clear()
        self._addresses.clear()


def _has_input(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, _POLL_EVENTS)
    return bool(poller.poll(0))


def _find_socket(address: SocketAddress, fds: Sequence[int]) -> int:
    """Return the file descriptor of the connection with this local address, or _NO_SOCKET."""
    local = (address.local_ip, address.local_port)
    return next((fd for fd in fds if _get_local_address(fd) == local), _NO_SOCKET)


def _get_local_address(fd: int) -> tuple[str, int] | None:
    try:
        borrowed = socket.socket(fileno=fd)
    except OSError:  # closed already
        return None
    try:
        ip, port = borrowed.getsockname()[:2]
        return str(ip), int(port)
    except (OSError, ValueError):
        return None
    finally:
        borrowed.detach()

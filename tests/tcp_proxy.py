"""A TCP proxy that stands between real processes and a real server, and makes the network trouble that a test asks for.

A process reaches the database through it with `DATABASE_URL=proxy.database_url`, while the test keeps a direct connection.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from urllib.parse import quote

import pytest
from django.db import connection

from tests.databases import get_database_name

# How soon a change of the trouble takes effect.
TICK_SECONDS = 0.05
CHUNK_BYTES = 65_536
# What `SLOW` lets through, in each direction of a connection.
SLOW_DELAY_SECONDS = 0.05
SLOW_CHUNK_BYTES = 8_192


@pytest.fixture
def proxy(transactional_db: None) -> Iterator[TcpProxy]:
    """Return a proxy to the server of the test's database. It skips the test on SQLite."""
    if connection.vendor == "sqlite":
        pytest.skip("a file has no connections")
    proxy = TcpProxy.to_database()
    try:
        yield proxy
    finally:
        proxy.close()


class Trouble(Enum):
    """The trouble that a proxy makes for connections."""

    NONE = "none"
    # Connections end without warning, and nothing listens.
    REFUSE = "refuse"
    # Connections end with a reset, and so does each new one.
    RESET = "reset"
    # Bytes of both directions are taken and thrown away, on old and new connections: a firewall that drops packets.
    SWALLOW = "swallow"
    # The same for the connections that exist now. New ones work: a firewall that has forgotten its table.
    FORGET = "forget"
    # Bytes are kept and passed on afterwards: a server that is suspended.
    HOLD = "hold"
    # Everything takes long.
    SLOW = "slow"


class TcpProxy:
    """Passes connections on from a local port, under the trouble that is set."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._trouble = Trouble.NONE
        self._pairs: list[_Pair] = []
        self._closed = threading.Event()
        self._listener: socket.socket | None = None
        self.port = 0
        self._listen()
        threading.Thread(target=self._accept, name="tcp-proxy", daemon=True).start()

    @classmethod
    def to_database(cls) -> TcpProxy:
        """Return a proxy to the server of the test's database."""
        database = connection.settings_dict
        return cls(database["HOST"] or "127.0.0.1", int(database["PORT"]))

    @property
    def database_url(self) -> str:
        """The URL of the test's database through this proxy."""
        database = connection.settings_dict
        user = f"{quote(database['USER'])}:{quote(database['PASSWORD'])}"
        return f"{get_database_name()}://{user}@127.0.0.1:{self.port}/{database['NAME']}"

    def set_trouble(self, trouble: Trouble) -> None:
        """Change what happens from now on. Connections that have lost bytes, or were forgotten, never work again."""
        pairs = [pair for pair in self._pairs if not pair.is_closed]
        if trouble is Trouble.FORGET:
            for pair in pairs:
                pair.is_forgotten = True
        if self._trouble is Trouble.SWALLOW:
            for pair in pairs:
                pair.is_forgotten = pair.is_forgotten or pair.has_lost_bytes
        self._trouble = trouble
        if trouble is Trouble.REFUSE:
            self._stop_listening()
            time.sleep(2 * TICK_SECONDS)  # until accept() has noticed
        elif self._listener is None:
            self._listen()
        if trouble in (Trouble.REFUSE, Trouble.RESET):
            for pair in pairs:
                pair.close(reset=trouble is Trouble.RESET)

    @contextmanager
    def make_trouble(self, trouble: Trouble, seconds: float) -> Iterator[None]:
        """Have the trouble for that long, at least for as long as the block takes."""
        end = time.monotonic() + seconds
        self.set_trouble(trouble)
        try:
            yield
            time.sleep(max(0.0, end - time.monotonic()))
        finally:
            self.set_trouble(Trouble.NONE)

    def count_connections(self) -> int:
        return sum(not pair.is_closed for pair in self._pairs)

    def close(self) -> None:
        self._closed.set()
        self._stop_listening()
        for pair in self._pairs:
            pair.close()

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        listener.settimeout(TICK_SECONDS)
        self.port = listener.getsockname()[1]
        self._listener = listener

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            listener = self._listener
            if listener is None:
                time.sleep(TICK_SECONDS)
                continue
            with suppress(OSError):
                client, _ = listener.accept()
                self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        pair = _Pair(client)
        if self._trouble is Trouble.RESET:
            pair.close(reset=True)
            return
        self._pairs.append(pair)
        threading.Thread(target=self._serve, args=(pair,), name="tcp-proxy-pair", daemon=True).start()

    def _serve(self, pair: _Pair) -> None:
        try:
            pair.server = socket.create_connection(self._server)
        except OSError:
            pair.close()
            return
        back = threading.Thread(target=self._pump, args=(pair, pair.server, pair.client), daemon=True)
        back.start()
        self._pump(pair, pair.client, pair.server)
        back.join()

    def _pump(self, pair: _Pair, source: socket.socket, target: socket.socket) -> None:
        try:
            while not pair.is_closed:
                if not select.select([source], [], [], TICK_SECONDS)[0]:
                    continue
                chunk = source.recv(SLOW_CHUNK_BYTES if self._trouble is Trouble.SLOW else CHUNK_BYTES)
                if not self._deliver(pair, chunk, target):
                    return
        except (OSError, ValueError):  # closed by the other direction, or by a change of the trouble
            pair.close()

    def _deliver(self, pair: _Pair, chunk: bytes, target: socket.socket) -> bool:
        """Pass a chunk on, or not. Return whether the source may have more."""
        while self._trouble is Trouble.HOLD and not pair.is_closed:
            time.sleep(TICK_SECONDS)
        if pair.is_forgotten or self._trouble is Trouble.SWALLOW:
            # Not even the end of a connection gets through.
            pair.has_lost_bytes = True
            return bool(chunk)
        if self._trouble is Trouble.SLOW:
            time.sleep(SLOW_DELAY_SECONDS)
        if not chunk:
            pair.close()
            return False
        target.sendall(chunk)
        return True


class _Pair:
    """A client's connection, and the one to the server that belongs to it."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.server: socket.socket | None = None
        self.is_closed = False
        self.is_forgotten = False
        self.has_lost_bytes = False

    def close(self, *, reset: bool = False) -> None:
        self.is_closed = True
        for end in (self.client, self.server):
            if end is not None:
                _close(end, reset=reset)


def _close(end: socket.socket, *, reset: bool) -> None:
    with suppress(OSError):
        if reset:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            end.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        end.close()

"""A TCP server in front of Cassandra. It passes frames of CQL's binary protocol on, and gives the errors that one node never gives.

It is also the server of TLS connections.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple
from urllib.parse import SplitResult

# Version 4: version, flags, stream, opcode, length.
HEADER = struct.Struct(">BBhBI")
RESPONSE, ERROR, EXECUTE, BATCH = 0x84, 0x00, 0x0A, 0x0D
LOCAL_QUORUM, SERIAL = 0x06, 0x08


class CqlFault(NamedTuple):
    """An error of the protocol, which is answered instead of the server's answer, or without asking the server at all."""

    code: int
    details: bytes = b""
    is_executed: bool = True

    def build_body(self) -> bytes:
        return struct.pack(">I", self.code) + _encode_string("made by the test") + self.details


def _encode_string(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


UNAVAILABLE = CqlFault(0x1000, struct.pack(">Hii", SERIAL, 2, 1), is_executed=False)
OVERLOADED = CqlFault(0x1001)
CAS_TIMEOUT = CqlFault(0x1100, struct.pack(">Hii", SERIAL, 1, 2) + _encode_string("CAS"))
COMMIT_TIMEOUT = CqlFault(0x1100, struct.pack(">Hii", LOCAL_QUORUM, 1, 2) + _encode_string("SIMPLE"))
READ_TIMEOUT = CqlFault(0x1200, struct.pack(">HiiB", LOCAL_QUORUM, 1, 2, 0))
READ_FAILURE = CqlFault(0x1300, struct.pack(">HiiiB", LOCAL_QUORUM, 0, 2, 1, 0))
SERVER_ERROR = CqlFault(0x0000)


class FaultyCassandra:
    """The faults are used up by the next statements that are executed, one by each. None is no fault."""

    def __init__(self, server: SplitResult, context: ssl.SSLContext | None) -> None:
        self._server = (server.hostname, server.port)
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self.port = self._listener.getsockname()[1]
        self.faults: list[CqlFault | None] = []
        self.count = 0
        self._start(self._accept)

    def pop_fault(self) -> CqlFault | None:
        with self._lock:
            self.count += 1
            return self.faults.pop(0) if self.faults else None

    def forget_requests(self) -> None:
        self.count = 0

    def close(self) -> None:
        for one in [self._listener, *self._sockets]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _start(self, function: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=function, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):
            self._sockets.append(client)
            if self._context:
                client = self._context.wrap_socket(client, server_side=True)
                self._sockets.append(client)
            server = socket.create_connection(self._server)
            self._sockets.append(server)
            # By the numbers of their streams, the requests whose answers are replaced.
            replaced: dict[int, CqlFault] = {}
            self._start(self._pass_answers, server, client, replaced)
            for header, body in _read_frames(client):
                *_, stream, opcode, _ = HEADER.unpack(header)
                fault = self.pop_fault() if opcode in (EXECUTE, BATCH) else None
                if fault and not fault.is_executed:
                    client.sendall(_build_error(stream, fault))
                    continue
                if fault:
                    replaced[stream] = fault
                server.sendall(header + body)

    def _pass_answers(
        self, server: socket.socket, client: socket.socket, replaced: dict[int, CqlFault]
    ) -> None:
        with suppress(OSError):
            for header, body in _read_frames(server):
                stream = HEADER.unpack(header)[2]
                fault = replaced.pop(stream, None)
                client.sendall(_build_error(stream, fault) if fault else header + body)


@contextmanager
def run_faulty_cassandra(
    server: SplitResult, context: ssl.SSLContext | None = None
) -> Iterator[FaultyCassandra]:
    faulty = FaultyCassandra(server, context)
    try:
        yield faulty
    finally:
        faulty.close()


def _read_frames(source: socket.socket) -> Iterator[tuple[bytes, bytes]]:
    """Return the frames of a connection, each as its header and its body, until it ends."""
    with source.makefile("rb") as stream:
        while len(header := stream.read(HEADER.size)) == HEADER.size:
            yield header, stream.read(HEADER.unpack(header)[4])


def _build_error(stream: int, fault: CqlFault) -> bytes:
    body = fault.build_body()
    return HEADER.pack(RESPONSE, 0, stream, ERROR, len(body)) + body

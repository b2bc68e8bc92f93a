"""Servers that misbehave, one that behaves well, and listeners that only count connections.

A server is a behavior, `Callable[[socket], None]`, that runs in a thread for each connection. It ends when the other
side closes the connection (an OSError) or the server is closed.
"""

from __future__ import annotations

import contextlib
import datetime
import gzip
import selectors
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from execution.addresses import AddressPolicy
from execution.dns import Lookup, look_up_host
from execution.egress import Egress, Limits
from execution.outcome import Attempt, Outcome

Behavior = Callable[[socket.socket], None]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LOOPBACK = AddressPolicy(allow=frozenset({"127.0.0.0/8:*", "[::1]:*"}))
MEBIBYTE = 1024 * 1024
DRIP_SECONDS = 0.05


@dataclass
class Request:
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


@dataclass
class Server:
    """A listening server, with the connections and requests that it has seen so far."""

    port: int
    connections: int = 0
    requests: list[Request] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, path: str = "/") -> str:
        return f"http://{self.address}{path}"


@contextmanager
def serving(
    behavior: Behavior, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> Iterator[Server]:
    """Run `behavior` for each connection. On exit, close all sockets and join all threads."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family, backlog=512)
    server = Server(listener.getsockname()[1])
    open_sockets: set[socket.socket] = set()
    threads: list[threading.Thread] = []

    def attend(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if tls is not None:
                open_sockets.discard(connection)
                connection = tls.wrap_socket(connection, server_side=True)
                open_sockets.add(connection)
            behavior(connection)
        connection.close()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                server.connections += 1
                open_sockets.add(connection)
                thread = threading.Thread(target=attend, args=(connection,), daemon=True)
                threads.append(thread)
                thread.start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield server
    finally:
        _hang_up(listener)
        acceptor.join(5)
        for connection in list(open_sockets):
            _hang_up(connection)
        for thread in threads:
            thread.join(5)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


@contextmanager
def answering(respond: Callable[[Request], bytes], tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Run a well-behaved HTTP/1.1 server that keeps connections alive and records its requests."""
    seen: list[Request] = []

    def behave(connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        try:
            while (request := read_request(stream)) is not None:
                seen.append(request)
                connection.sendall(respond(request))
        finally:
            stream.close()

    with serving(behave, tls) as server:
        server.requests = seen
        yield server


def read_request(stream: Iterable[bytes]) -> Request | None:
    lines = iter(stream.readline, b"")  # type: ignore[attr-defined]
    first = next(lines, b"").split()
    if len(first) != 3:
        return None
    headers: list[tuple[str, str]] = []
    for line in lines:
        if line == b"\r\n":
            break
        name, _, value = line.decode("latin-1").rstrip("\r\n").partition(": ")
        headers.append((name, value))
    length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
    body = stream.read(length)  # type: ignore[attr-defined]
    return Request(first[0].decode(), first[1].decode(), headers, body)


def read_head(connection: socket.socket) -> bytes:
    """Return the request up to its body, which is enough for a server that misbehaves."""
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = connection.recv(65536)
        if not chunk:
            raise ConnectionResetError
        received += chunk
    return received


# --- behaviors ---


def say_nothing(connection: socket.socket) -> None:
    read_head(connection)
    while connection.recv(65536):
        pass


def never_read(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    time.sleep(1)


def repeat(before: bytes, piece: bytes, pause: float = 0.0) -> Behavior:
    """Send `before`, then `piece` again and again, with a pause after each."""

    def behave(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(before)
        while True:
            connection.sendall(piece)
            if pause:
                time.sleep(pause)

    return behave


def send_once(*pieces: bytes, then: Behavior | None = None) -> Behavior:
    """Send the pieces, then close the connection, or run `then`."""

    def behave(connection: socket.socket) -> None:
        read_head(connection)
        for piece in pieces:
            connection.sendall(piece)
        if then is not None:
            then(connection)

    return behave


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def half_close(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(65536):
        pass


def wait_until_closed(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def drip(text: bytes) -> Behavior:
    def behave(connection: socket.socket) -> None:
        read_head(connection)
        for index in range(len(text)):
            connection.sendall(text[index : index + 1])
            time.sleep(DRIP_SECONDS)

    return behave


def send_zeros(total: int) -> Behavior:
    """Send a body of `total` zero bytes from one buffer, so that the server itself needs little memory."""
    block = bytes(MEBIBYTE)

    def behave(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        for _ in range(total // MEBIBYTE):
            connection.sendall(block)
        wait_until_closed(connection)

    return behave


def gzip_bomb(unpacked: int) -> bytes:
    packed = gzip.compress(bytes(16 * MEBIBYTE)) * (unpacked // (16 * MEBIBYTE))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    return head + packed


@contextmanager
def listening_only(backlog: int = 4096) -> Iterator[Server]:
    """Let the kernel complete connections, but never accept them."""
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as listener:
        yield Server(listener.getsockname()[1])


@contextmanager
def refusing_to_accept() -> Iterator[Server]:
    """Fill the backlog, so that further connection requests get no response at all."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as fillers:
        port = listener.getsockname()[1]
        for _ in range(4):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        time.sleep(0.05)
        yield Server(port)


@dataclass
class Canary:
    """A listener at one port of every local IPv4 and IPv6 address. In most tests no connection may reach it."""

    port: int
    connections: int = 0


@contextmanager
def canary_listening() -> Iterator[Canary]:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(socket.create_server(("0.0.0.0", 0), backlog=128))
        canary = Canary(first.getsockname()[1])
        listeners = [first]
        if socket.has_dualstack_ipv6():
            listeners.append(
                stack.enter_context(socket.create_server(("::", canary.port), family=socket.AF_INET6))
            )
        stop_reader, stop_writer = socket.socketpair()
        stack.enter_context(stop_reader)
        stack.enter_context(stop_writer)
        thread = threading.Thread(target=_watch, args=(canary, listeners, stop_reader), daemon=True)
        thread.start()
        try:
            yield canary
        finally:
            stop_writer.send(b"x")
            thread.join(5)


def _watch(canary: Canary, listeners: list[socket.socket], stop: socket.socket) -> None:
    with selectors.DefaultSelector() as selector:
        for listener in (*listeners, stop):
            selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is stop:
                    return
                connection, _address = key.fileobj.accept()  # type: ignore[union-attr]
                canary.connections += 1
                with connection, contextlib.suppress(OSError):
                    connection.sendall(OK)


# --- certificates, created for each run ---


@dataclass(frozen=True)
class Authority:
    """A certificate authority with a CA file, which issues certificates for servers."""

    directory: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def ca_file(self) -> str:
        return str(self.directory / "ca.pem")

    def server_context(self, *names: str, seen: list[str | None] | None = None) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _sign(names[0], key, self.certificate.subject, self.key, names)
        path = self.directory / f"{names[0]}.pem"
        path.write_bytes(_pem(certificate) + _key_pem(key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        if seen is not None:
            context.sni_callback = lambda _socket, name, _context: seen.append(name)
        return context


def make_authority(directory: Path) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    certificate = _sign("test authority", key, name, key, ())
    (directory / "ca.pem").write_bytes(_pem(certificate))
    return Authority(directory, certificate, key)


def _sign(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    names: Iterable[str],
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
    alternatives = [x509.DNSName(name) for name in names]
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    else:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.sign(issuer_key, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


# --- the egress ---


@contextmanager
def running(
    policy: AddressPolicy = LOOPBACK,
    limits: Limits | None = None,
    lookup: Lookup = look_up_host,
    ca_file: str | None = None,
) -> Iterator[Egress]:
    egress = Egress(policy, limits or Limits(), lookup=lookup, ca_file=ca_file)
    egress.start()
    try:
        yield egress
    finally:
        egress.close()


def build_attempt(
    url: str,
    method: str = "GET",
    headers: Iterable[tuple[str, str]] = (),
    body: bytes | None = None,
    timeout: float = 5.0,
    key: object = "key",
    tenant: str | None = None,
) -> Attempt:
    return Attempt(key, method, url, tuple(headers), body, timeout, tenant)


def gather(egress: Egress, count: int, within: float = 15.0) -> list[Outcome]:
    """Collect `count` outcomes, or fewer if they do not arrive in time."""
    outcomes: list[Outcome] = []
    ends_at = time.monotonic() + within
    while len(outcomes) < count and time.monotonic() < ends_at:
        outcomes += egress.collect(ends_at - time.monotonic())
    return outcomes


def perform(egress: Egress, one: Attempt) -> Outcome:
    egress.send([one])
    outcomes = gather(egress, 1)
    assert len(outcomes) == 1, "the attempt had no outcome"
    return outcomes[0]

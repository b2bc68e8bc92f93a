"""TLS certificates are verified against the host name, and failures are reported as TLS errors."""

import socket
import ssl
import struct
import threading
from pathlib import Path

import pytest

from execution.outcome import Errored, ErrorKind, Responded
from tests.execution import hostile
from tests.execution.hostile import (
    Authority,
    answering,
    build_attempt,
    make_authority,
    perform,
    running,
    serving,
)

NAME = "secure.example"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    directory: Path = tmp_path_factory.mktemp("tls")
    return make_authority(directory)


def to_loopback(_host: str) -> list[str]:
    return ["127.0.0.1"]


def ok(_request: hostile.Request) -> bytes:
    return hostile.OK


def test_a_certified_server_is_called_under_its_name(authority: Authority) -> None:
    names: list[str | None] = []
    with (
        answering(ok, authority.server_context(NAME, seen=names)) as server,
        running(lookup=to_loopback, ca_file=authority.ca_file) as egress,
    ):
        outcome = perform(egress, build_attempt(f"https://{NAME}:{server.port}/"))
    assert isinstance(outcome, Responded), outcome
    assert outcome.timings.tls_ms > 0
    assert names == [NAME]
    assert server.requests[0].header("Host") == f"{NAME}:{server.port}"


def test_the_authorities_of_ssl_cert_file_are_trusted(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", authority.ca_file)
    with (
        answering(ok, authority.server_context(NAME)) as server,
        running(lookup=to_loopback) as egress,
    ):
        outcome = perform(egress, build_attempt(f"https://{NAME}:{server.port}/"))
    assert isinstance(outcome, Responded), outcome


def test_tls_connections_are_reused(authority: Authority) -> None:
    with (
        answering(ok, authority.server_context(NAME)) as server,
        running(lookup=to_loopback, ca_file=authority.ca_file) as egress,
    ):
        for _ in range(5):
            assert isinstance(perform(egress, build_attempt(f"https://{NAME}:{server.port}/")), Responded)
    assert server.connections == 1


def test_tenants_have_tls_connections_of_their_own(authority: Authority) -> None:
    names: list[str | None] = []
    with (
        answering(ok, authority.server_context(NAME, seen=names)) as server,
        running(lookup=to_loopback, ca_file=authority.ca_file) as egress,
    ):
        for tenant in ("a", "b", "a", "b"):
            outcome = perform(egress, build_attempt(f"https://{NAME}:{server.port}/", tenant=tenant))
            assert isinstance(outcome, Responded), outcome
    assert server.connections == 2
    assert names == [NAME, NAME], "the name of the pool is not sent"


def test_a_tls_connection_that_the_server_has_closed_is_not_used(authority: Authority) -> None:
    has_ended = threading.Event()

    def respond_once(connection: socket.socket) -> None:
        hostile.read_head(connection)
        connection.sendall(hostile.OK)
        connection.close()
        has_ended.set()

    with (
        serving(respond_once, authority.server_context(NAME)) as server,
        running(lookup=to_loopback, ca_file=authority.ca_file) as egress,
    ):
        for _ in range(4):
            outcome = perform(egress, build_attempt(f"https://{NAME}:{server.port}/", "POST", body=b"x"))
            assert isinstance(outcome, Responded), outcome
            assert has_ended.wait(10)
            has_ended.clear()
    assert server.connections == 4


@pytest.mark.parametrize("trusted", [True, False])
def test_a_certificate_must_be_for_the_name_and_from_a_known_authority(
    authority: Authority, trusted: bool
) -> None:
    certified = "other.example" if trusted else NAME
    with (
        answering(ok, authority.server_context(certified)) as server,
        running(lookup=to_loopback, ca_file=authority.ca_file if trusted else None) as egress,
    ):
        outcome = perform(egress, build_attempt(f"https://{NAME}:{server.port}/"))
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.TLS
    assert not outcome.may_have_been_sent
    assert server.requests == []


def greet(connection: socket.socket) -> None:
    connection.sendall(b"220 smtp.example.com ESMTP\r\n")
    connection.recv(1000)


def reset_in_handshake(connection: socket.socket) -> None:
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("behavior", [greet, reset_in_handshake])
def test_a_handshake_that_fails_is_a_tls_error(behavior: hostile.Behavior) -> None:
    with serving(behavior) as server, running() as egress:
        outcome = perform(egress, build_attempt(f"https://127.0.0.1:{server.port}/"))
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.TLS, outcome
    assert not outcome.may_have_been_sent


def test_old_protocol_versions_are_refused(authority: Authority) -> None:
    context = authority.server_context(NAME)
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLS"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        answering(ok, context) as server,
        running(lookup=to_loopback, ca_file=authority.ca_file) as egress,
    ):
        outcome = perform(egress, build_attempt(f"https://{NAME}:{server.port}/"))
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.TLS

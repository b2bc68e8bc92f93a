"""Publishers and servers prove to each other who they are: real handshakes, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from outbox.envelope import Envelope
from outbox.publisher import Broker, PoisonEvent, PublishError
from outbox.publisher_spec import BrokerUrl
from outbox.publishers import build_broker
from tests.contracts.tls_servers import SERVERS, TlsServer, start_tls_server
from tests.outbox.support import build_envelopes
from tests.services import require_service

# They use no database. One process starts the servers.
pytestmark = [pytest.mark.sqlite_only, pytest.mark.xdist_group("tls")]

Build = Callable[..., Broker]

LONG_SECONDS = 30.0


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], TlsServer]]:
    """Return a function that returns the server of a kind. It starts each once."""
    with ExitStack() as running:
        yield cache(lambda kind: running.enter_context(start_tls_server(kind, tmp_path_factory.mktemp(kind))))


# Not a fixture of the module: pytest would start a server again for a test that names its kind.
@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, start: Callable[[str], TlsServer]) -> TlsServer:
    return start(request.param)


@pytest.fixture
def build(server: TlsServer) -> Iterator[Build]:
    """Return a function that builds a publisher to the server with the given options."""
    built: list[Broker] = []

    def build_publisher(host: str = "127.0.0.1", **options: object) -> Broker:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        url = BrokerUrl.parse(f"{server.scheme}://{server.credentials}{host}:{server.port}/?{query}")
        built.append(build_broker("main", url))
        return built[-1]

    yield build_publisher
    for publisher in built:
        publisher.close()


def build_for_client(build: Build, server: TlsServer, **options: object) -> Broker:
    return build(ca=server.authority, cert=server.client.cert, key=server.client.key, **options)


def test_both_sides_accept_certificates_of_their_authority(server: TlsServer, build: Build) -> None:
    publisher = build_for_client(build, server)
    events = build_envelopes("aab")
    # A server accepts connections before it has started.
    deadline = time.monotonic() + LONG_SECONDS
    while (problem := find_problem(publisher, events)) is not None:
        assert time.monotonic() < deadline, problem


def find_problem(publisher: Broker, events: list[Envelope]) -> PublishError | None:
    try:
        publisher.publish(events)
    except PublishError as error:
        return error
    return None


def test_a_server_of_another_authority_is_refused(server: TlsServer, build: Build) -> None:
    publisher = build(ca=server.other_authority, cert=server.client.cert, key=server.client.key, timeout=2)
    with pytest.raises(PublishError, match=r"(?i)certificate.verify.failed") as raised:
        publisher.publish(build_envelopes("a"))
    assert raised.value.accepted == 0


def test_a_server_whose_certificate_is_for_another_host_is_refused(server: TlsServer, build: Build) -> None:
    publisher = build_for_client(build, server, host="localhost", timeout=2)
    with pytest.raises(PublishError, match=r"(?i)certificate.verify.failed|hostname") as raised:
        publisher.publish(build_envelopes("a"))
    assert raised.value.accepted == 0


def test_the_server_refuses_a_client_without_a_certificate(server: TlsServer, build: Build) -> None:
    with pytest.raises(PublishError) as raised:
        build(ca=server.authority, timeout=2).publish(build_envelopes("a"))
    assert raised.value.accepted == 0


@pytest.mark.parametrize("server", ["rabbitmq"], indirect=True)
def test_the_limit_that_a_server_names_is_remembered(server: TlsServer, build: Build) -> None:
    publisher = build_for_client(build, server)
    events = [*build_envelopes("a"), *build_envelopes("ab", 60_000)[1:]]
    with pytest.raises(PublishError) as first:
        publisher.publish(events)
    assert not isinstance(first.value, PoisonEvent)
    with pytest.raises(PoisonEvent, match="more than 50000 bytes") as second:
        publisher.publish(events)
    assert second.value.accepted == 1


def test_nats_without_tls_gets_no_password() -> None:
    """The client library alone would accept what the server says, and send the password unencrypted."""
    address = require_service("nats").netloc
    url = BrokerUrl.parse(f"nats+tls://{address}/?create=false")
    with pytest.raises(PublishError, match="the server does not use TLS"):
        build_broker("nats", url).publish(build_envelopes("a"))

"""Publishers and servers prove to each other who they are: real handshakes, and what is refused.

Kafka's permissions are here as well, because this server has users, and starting another takes long.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest
from django.conf import settings

from outbox.broker_queue import BrokerBacklog, BrokerQueue, BrokerSender, list_backlogs
from outbox.envelope import Envelope
from outbox.publisher import Broker, PoisonEvent, PublishError
from outbox.publisher_spec import BrokerUrl
from outbox.publishers import build_broker
from tests.contracts.tls_servers import SERVERS, TlsServer, start_tls_server
from tests.outbox.support import Clock, build_dispatcher, build_envelopes, store_run
from tests.services import require_service

# They are not about the database. One process starts the servers.
pytestmark = [pytest.mark.sqlite_only, pytest.mark.xdist_group("tls")]

Build = Callable[..., Broker]

LONG_SECONDS = 30.0
DOCUMENTATION = settings.BASE_DIR / "docs" / "brokers.md"


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

    def build_publisher(
        host: str = "127.0.0.1", credentials: str = server.credentials, **options: object
    ) -> Broker:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        url = BrokerUrl.parse(f"{server.scheme}://{credentials}{host}:{server.port}/?{query}")
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


class KafkaUser:
    """A user of the server, who may do nothing yet."""

    def __init__(self, server: TlsServer) -> None:
        from confluent_kafka import admin

        self._admin = admin
        self.name = f"test-{uuid.uuid4().hex}"
        self.credentials = f"{self.name}:secret@"
        username, password = server.credentials.rstrip("@").split(":")
        self._client = admin.AdminClient(
            {
                "bootstrap.servers": f"127.0.0.1:{server.port}",
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(server.authority),
                "ssl.certificate.location": str(server.client.cert),
                "ssl.key.location": str(server.client.key),
                "sasl.mechanism": "PLAIN",
                "sasl.username": username,
                "sasl.password": password,
            }
        )
        info = admin.ScramCredentialInfo(admin.ScramMechanism.SCRAM_SHA_512, 4096)
        created = admin.UserScramCredentialUpsertion(self.name, info, b"secret")
        for result in self._client.alter_user_scram_credentials([created]).values():
            result.result(LONG_SECONDS)

    def permit(self, operation: str, topic: str) -> None:
        binding = self._admin.AclBinding(
            self._admin.ResourceType.TOPIC,
            topic,
            self._admin.ResourcePatternType.LITERAL,
            f"User:{self.name}",
            "*",
            self._admin.AclOperation[operation.upper()],
            self._admin.AclPermissionType.ALLOW,
        )
        for result in self._client.create_acls([binding]).values():
            result.result(LONG_SECONDS)


def send_until(publisher: Broker, error: str | None) -> None:
    """Send what is queued until the first event waits for this reason, or nothing waits: the server takes a moment to
    apply a permission.
    """
    dispatcher = build_dispatcher(BrokerQueue(publisher.name))
    clock = Clock()
    sender = BrokerSender(publisher, clock=clock)
    dispatcher.dispatch_once()
    deadline = time.monotonic() + LONG_SECONDS
    while not has_error(list_backlogs(100), error):
        assert time.monotonic() < deadline, list_backlogs(100)
        clock.now += 60.0
        sender.send_once(dispatcher.partitions, dispatcher.fence)
        time.sleep(0.02)
    dispatcher.release()


def has_error(backlogs: list[BrokerBacklog], error: str | None) -> bool:
    if error is None:
        return not backlogs
    return bool(backlogs) and error in (backlogs[0].last_error or "")


@pytest.mark.django_db
@pytest.mark.parametrize("server", ["kafka"], indirect=True)
def test_a_missing_permission_of_kafka_is_named_and_delays_events(server: TlsServer, build: Build) -> None:
    """The permissions are those of the documentation, which are given one after the other."""
    (command,) = re.findall(r"kafka-acls.sh (.*)", DOCUMENTATION.read_text())
    operations = re.findall(r"--operation (\w+)", command)
    assert operations == ["Write", "Create"]
    user = KafkaUser(server)
    topic = user.name
    options = {"credentials": user.credentials, "sasl": "SCRAM-SHA-512", "topic": topic}
    publisher = build_for_client(build, server, **options)
    store_run(uuid.uuid4(), 3)
    for operation in operations:
        send_until(publisher, f"needs the permission {operation} on the topic {topic}")
        assert [backlog.count for backlog in list_backlogs(100)] == [3]
        user.permit(operation, topic)
    send_until(publisher, None)
    build_for_client(build, server, **options, create="false").publish(build_envelopes("a"))

    reader = KafkaUser(server)
    reader.permit("Describe", topic)
    store_run(uuid.uuid4(), 2)
    publisher = build_for_client(build, server, **{**options, "credentials": reader.credentials})
    send_until(
        publisher, f"needs the permission Write on the topic {topic}, and before Kafka 2.8 IdempotentWrite"
    )
    assert [backlog.count for backlog in list_backlogs(100)] == [2]


def test_nats_without_tls_gets_no_password() -> None:
    """The client library alone would accept what the server says, and send the password unencrypted."""
    address = require_service("nats").netloc
    url = BrokerUrl.parse(f"nats+tls://{address}/?create=false")
    with pytest.raises(PublishError, match="the server does not use TLS"):
        build_broker("nats", url).publish(build_envelopes("a"))

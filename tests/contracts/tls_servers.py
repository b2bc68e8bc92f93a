"""Brokers that speak TLS only and demand a certificate of their clients, each in a process of the test's own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.services import require_library, skip

START_SECONDS = 90.0
# Where `make services` has put Kafka, which is not in the path.
KAFKA_JARS = Path(os.environ.get("SERVICES_DIR", "/var/tmp/eventservice-services")) / "build" / "kafka"


@dataclass(frozen=True)
class Certificate:
    """The files of a certificate and its private key."""

    cert: Path
    key: Path


class Authority:
    """Issues certificates. `cert` is the file of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        builder = self._begin(self._name, self._key).add_extension(constraints, critical=True)
        self.cert = self._write(name, builder, self._key).cert

    def issue(self, name: str) -> Certificate:
        """Return a certificate for a server at 127.0.0.1 (not `localhost`), or for a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        addresses = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._write(name, self._begin(subject, key).add_extension(addresses, critical=False), key)

    def _begin(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(authority, critical=False)
        )

    def _write(
        self, name: str, builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey
    ) -> Certificate:
        certificate = builder.sign(self._key, hashes.SHA256())
        files = Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        files.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files


@dataclass(frozen=True)
class TlsServer:
    """A server that runs, and the files for a client of it."""

    scheme: str
    port: int
    credentials: str
    authority: Path
    client: Certificate
    # The certificate of an authority that has signed nothing here.
    other_authority: Path


@contextmanager
def start_redis(folder: Path, port: int, files: Certificate, authority: Path) -> Iterator[None]:
    tls: list[str | Path] = [
        "--tls-port",
        str(port),
        "--tls-cert-file",
        files.cert,
        "--tls-key-file",
        files.key,
    ]
    with run(
        folder,
        port,
        [
            find_program("redis-server"),
            *("--port", "0", "--bind", "127.0.0.1", "--save", "", "--dir"),
            folder,
            *tls,
            "--tls-ca-cert-file",
            authority,
            *("--tls-auth-clients", "yes"),
        ],
    ):
        yield


@contextmanager
def start_nats(folder: Path, port: int, files: Certificate, authority: Path) -> Iterator[None]:
    with run(
        folder,
        port,
        [
            find_program("nats-server"),
            *("-a", "127.0.0.1", "-p", str(port), "-js", "-sd", folder, "--user", "us", "--pass", "secret"),
            *("--tlscert", files.cert, "--tlskey", files.key, "--tlscacert", authority, "--tlsverify"),
        ],
    ):
        yield


@contextmanager
def start_rabbitmq(folder: Path, port: int, files: Certificate, authority: Path) -> Iterator[None]:
    # Debian has another program of this name in the path, which changes the user.
    program = find_program("rabbitmq-server", "/usr/lib/rabbitmq/bin")
    config = {
        "listeners.tcp": "none",
        "listeners.ssl.1": f"127.0.0.1:{port}",
        "ssl_options.cacertfile": authority,
        "ssl_options.certfile": files.cert,
        "ssl_options.keyfile": files.key,
        "ssl_options.verify": "verify_peer",
        "ssl_options.fail_if_no_peer_cert": "true",
        "max_message_size": "50000",
    }
    (folder / "rabbitmq.conf").write_text("".join(f"{name} = {value}\n" for name, value in config.items()))
    epmd_port, distribution_port = find_free_ports(2)
    environment = {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"test-{uuid.uuid4().hex[:8]}@localhost",
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_DIST_PORT": str(distribution_port),
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        # Its schedulers do not wait for work in loops, which would take the cores from others.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none"
        ),
    }
    try:
        with run(folder, port, [program], environment):
            yield
    finally:
        _end_port_mapper({**os.environ, **environment})


def _end_port_mapper(environment: Mapping[str, str]) -> None:
    """End the epmd that the server has started. It refuses until it has noticed that the server has ended."""
    for _ in range(50):
        result = subprocess.run(
            ["epmd", "-kill"], env=environment, capture_output=True, text=True, check=False
        )
        if "not allowed" not in result.stdout + result.stderr:
            return
        time.sleep(0.1)


@contextmanager
def start_kafka(folder: Path, port: int, files: Certificate, authority: Path) -> Iterator[None]:
    java = find_program("java")
    if not KAFKA_JARS.is_dir():
        skip("Kafka is not installed; start it once: make services NAMES=kafka")
    (controller_port,) = find_free_ports(1)
    (folder / "keystore.pem").write_bytes(files.key.read_bytes() + files.cert.read_bytes())
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
        "listeners": f"SASL_SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"SASL_SSL://127.0.0.1:{port}",
        "listener.security.protocol.map": "SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": folder / "keystore.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority,
        # With users, a certificate is demanded only by the setting of the listener.
        "listener.name.sasl_ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required"
            ' username="admin" password="secret" user_admin="secret";'
        ),
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        # Other users may do what an ACL permits. The controller's listener knows no users.
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",
        "log.dirs": folder / "data",
        "offsets.topic.replication.factor": "1",
    }
    path = folder / "server.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    # It lives too briefly for what the second compiler and parallel garbage collection cost.
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    kafka: list[str | Path] = [java, *options, "-cp", f"{KAFKA_JARS}/*"]
    storage = ["kafka.tools.StorageTool", "format", "--standalone", "-t", "AAAAAAAAQACAAAAAAAAAAQ"]
    subprocess.run([*kafka, *storage, "-c", path], capture_output=True, check=True, timeout=START_SECONDS)
    with run(folder, port, [*kafka, "kafka.Kafka", path]):
        yield


# By the package in outbox.publishers: the scheme of the URL, the user and password, and how the server is started.
Start = Callable[[Path, int, Certificate, Path], AbstractContextManager[None]]
SERVERS: dict[str, tuple[str, str, str, Start]] = {
    "redis": ("rediss", "", "redis", start_redis),
    "nats": ("nats+tls", "us:secret@", "nats", start_nats),
    "rabbitmq": ("amqps", "guest:guest@", "aiormq", start_rabbitmq),
    "kafka": ("kafka+tls", "admin:secret@", "confluent_kafka", start_kafka),
}


@contextmanager
def start_tls_server(kind: str, folder: Path) -> Iterator[TlsServer]:
    scheme, credentials, library, start = SERVERS[kind]
    require_library(library)
    authority, other = Authority(folder, "authority"), Authority(folder, "other")
    (port,) = find_free_ports(1)
    with start(folder, port, authority.issue("server"), authority.cert):
        yield TlsServer(scheme, port, credentials, authority.cert, authority.issue("client"), other.cert)


@contextmanager
def run(
    folder: Path, port: int, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Run a server in its own process group, from when it accepts connections."""
    with (folder / "log").open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        _wait_for(port, process, folder / "log")
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def find_program(name: str, folder: str = "/usr/sbin") -> str:
    found = shutil.which(name, path=f"{folder}:{os.environ['PATH']}")
    if found is None:
        skip(f"{name} is not installed")
    return found


def find_free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.1)

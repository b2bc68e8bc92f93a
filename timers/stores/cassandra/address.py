"""The URL of a timer store on Cassandra: `cassandra://USER:PASSWORD@HOST:PORT,HOST/KEYSPACE`, with options."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote

DEFAULT_PORT = 9042
TLS_SCHEME = "cassandra+tls"
# A host name, an IPv4 address, or an IPv6 address in brackets.
HOST = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?")
KEYSPACE = re.compile(r"[a-z][a-z0-9_]{0,47}")
DATA_CENTER = re.compile(r"[A-Za-z0-9_.-]+")
# A number of replicas for each data center, or numbers by data centers.
REPLICAS = re.compile(r"[1-9][0-9]?")
OPTIONS = ("dc", "replication", "ca", "cert", "key")
TLS_OPTIONS = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class CassandraAddress:
    """The address of a keyspace, with the options of connecting to it."""

    hosts: tuple[tuple[str, int], ...]
    keyspace: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    is_encrypted: bool = False
    # The data center of this cell. None: that of the first host.
    data_center: str | None = None
    # The number of replicas in each data center, by which `migrate` creates the keyspace. None: it must exist.
    replication: Mapping[str, int] | None = None
    # With TLS: who may have signed the certificates of the servers, and the certificate of this client.
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    @classmethod
    def parse(cls, parts: SplitResult) -> CassandraAddress:
        """Parse a URL. Raise ValueError, which quotes nothing of it, if it cannot be used."""
        credentials, has_credentials, hosts = parts.netloc.rpartition("@")
        user, has_password, password = credentials.partition(":")
        if has_credentials and not (user and has_password):
            raise ValueError("the URL must have both a user and a password, or neither")
        # Before the keyspace: a slash that is not encoded, in the password, makes hosts of what is before it.
        servers = tuple(map(_parse_host, hosts.split(",")))
        keyspace = parts.path.removeprefix("/")
        if not KEYSPACE.fullmatch(keyspace):
            raise ValueError(
                "the keyspace must have up to 48 lowercase letters, digits and '_', and begin with a letter"
            )
        options = _parse_options(parts.query)
        is_encrypted = parts.scheme == TLS_SCHEME
        if not is_encrypted and not options.keys().isdisjoint(TLS_OPTIONS):
            raise ValueError(f"the options {', '.join(TLS_OPTIONS)} need the scheme {TLS_SCHEME}")
        if ("cert" in options) != ("key" in options):
            raise ValueError("the options cert and key must be given together")
        data_center = options.get("dc")
        if data_center is not None and not DATA_CENTER.fullmatch(data_center):
            raise ValueError("the option dc must be the name of a data center")
        return cls(
            hosts=servers,
            keyspace=keyspace,
            user=unquote(user) if has_credentials else None,
            password=unquote(password) if has_credentials else None,
            is_encrypted=is_encrypted,
            data_center=data_center,
            replication=_parse_replication(options["replication"]) if "replication" in options else None,
            ca=options.get("ca"),
            cert=options.get("cert"),
            key=options.get("key"),
        )

    def build_tls_context(self) -> ssl.SSLContext | None:
        """Read the files. The context verifies the certificate of a server and its address."""
        if not self.is_encrypted:
            return None
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert:
            context.load_cert_chain(self.cert, self.key)
        return context


def _parse_host(text: str) -> tuple[str, int]:
    match = HOST.fullmatch(text)
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ValueError(
            "the hosts must be names or addresses with optional ports, separated by commas;"
            " / and @ in a password are written as %2F and %40"
        )
    return match["host"].strip("[]"), port


def _parse_options(query: str) -> dict[str, str]:
    options = parse_qsl(query, keep_blank_values=True)
    names = [name for name, _ in options]
    if any(name not in OPTIONS for name in names):
        raise ValueError(f"the URL has an unknown option; the options are {', '.join(OPTIONS)}")
    if len(set(names)) < len(names):
        raise ValueError("the URL has an option twice")
    if empty := [name for name, value in options if not value]:
        raise ValueError(f"the option {empty[0]} has no value")
    return dict(options)


def _parse_replication(text: str) -> dict[str, int]:
    """Parse `3` or `eu:3,us:2` into the parameters of a keyspace's replication."""
    if REPLICAS.fullmatch(text):
        return {"replication_factor": int(text)}
    replication: dict[str, int] = {}
    for item in text.split(","):
        data_center, _, replicas = item.partition(":")
        if not DATA_CENTER.fullmatch(data_center) or not REPLICAS.fullmatch(replicas):
            raise ValueError("the option replication must be a number, or numbers by data centers: eu:3,us:3")
        replication[data_center] = int(replicas)
    return replication

"""The part of a broker that the contract suites use."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import UUID

from outbox import publisher
from outbox.publisher_spec import BrokerUrl
from outbox.publishers import build_broker
from tests.services import require_library, require_service
from tests.tcp_proxy import TcpProxy


class Broker:
    """A real server behind a proxy, with a stream, queue or topic of this test's own."""

    service: ClassVar[str]
    library: ClassVar[str]
    # The options of a URL whose stream, queue or topic does not exist, and is not created.
    missing: ClassVar[str]
    proxy_class: ClassVar[type[TcpProxy]] = TcpProxy

    tenant_ids: Sequence[UUID] = ()

    def __init__(self) -> None:
        require_library(self.library)
        self.url = require_service(self.service)
        self.name = f"test-{uuid.uuid4().hex}"
        self.proxy = self.proxy_class(self.url.hostname or "", self.url.port or 0)
        self.publishers: list[publisher.Broker] = []
        self.create()

    def create(self) -> None:
        """Create what the test publishes to, unless the publisher does."""

    def destroy(self) -> None:
        """Delete what the test has published to."""
        raise NotImplementedError

    def get_options(self) -> str:
        """Return the options by which a URL names what this test publishes to."""
        raise NotImplementedError

    def get_wrong_credentials(self) -> str:
        """Return a user and a password that the server refuses, as in a URL."""
        return "somebody:wrong-password"

    def list_accepted(self) -> list[dict[str, Any]]:
        """Return the events that the server has, read directly and not through the proxy."""
        raise NotImplementedError

    def list_deduplication_ids(self) -> list[str]:
        """Return the ids by which the server or its consumers recognize repeats, in the order of acceptance."""
        raise NotImplementedError

    def count_connections(self) -> int:
        return self.proxy.count_connections()

    def build(self, *options: str, credentials: str | None = None) -> publisher.Broker:
        """Build a publisher through the proxy."""
        built = build_broker(self.service, BrokerUrl.parse(self.build_url(*options, credentials=credentials)))
        self.publishers.append(built)
        return built

    def build_url(self, *options: str, credentials: str | None = None) -> str:
        """Return the URL of a publisher through the proxy."""
        user = self.url.netloc.rpartition("@")[0] if credentials is None else credentials
        address = f"{user}@127.0.0.1:{self.proxy.port}" if user else f"127.0.0.1:{self.proxy.port}"
        query = "&".join([self.get_options(), *options])
        return f"{self.url.scheme}://{address}{self.url.path}?{query}"

    def close(self) -> None:
        for built in self.publishers:
            built.close()
        self.proxy.close()
        self.destroy()

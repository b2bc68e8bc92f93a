"""The publishers: one package for each, with its `Publisher` in `publisher.py`.

CONTRIBUTING.md describes how to add one.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import cast

from outbox.broker_queue import BrokerQueue
from outbox.publisher import Broker, Publisher
from outbox.publisher_spec import LIBRARIES, LOG, BrokerUrl, PublisherSpec
from outbox.publishers.log.publisher import LogPublisher
from outbox.publishers.webhook.publisher import WebhookPublisher


def build_publishers(specs: Sequence[PublisherSpec], log_format: str) -> list[Publisher]:
    """Build the publishers that are named, with a queue for each broker, and that of webhooks in any case.

    An event counts as published when all of them have accepted it.
    """
    chosen: list[Publisher] = [LogPublisher(log_format) for spec in specs if spec.name == LOG]
    return [*chosen, WebhookPublisher(), *(BrokerQueue(spec.name) for spec in specs if spec.url)]


def build_brokers(specs: Sequence[PublisherSpec]) -> list[Broker]:
    """Build the publishers that empty the queues."""
    return [build_broker(spec.name, spec.url) for spec in specs if spec.url]


def build_broker(name: str, url: BrokerUrl) -> Broker:
    """Build the publisher of a broker, without connecting.

    Raise ValueError, without quoting the URL, if it cannot be used or the client library is not installed.
    """
    package = url.publisher
    try:
        module = import_module(f"outbox.publishers.{package}.publisher")
    except ModuleNotFoundError as error:
        library = LIBRARIES[package]
        if (error.name or "").partition(".")[0] != library:
            raise
        raise ValueError(f"{name}: the Python package {library!r} is not installed") from None
    try:
        return cast(Broker, module.build_publisher(name, url))
    except ValueError as problem:
        raise ValueError(f"{name}: {problem}") from None

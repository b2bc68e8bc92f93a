"""The publishers: one package for each, with its `Publisher` in `publisher.py`.

CONTRIBUTING.md describes how to add one.
"""

from __future__ import annotations

from collections.abc import Collection

from outbox.publisher import Publisher
from outbox.publishers.log.publisher import LogPublisher
from outbox.publishers.webhook.publisher import WebhookPublisher


def build_publishers(names: Collection[str], log_format: str) -> list[Publisher]:
    """Build the publishers of these names, and that of webhooks in any case.

    An event counts as published when all of them have accepted it.
    """
    chosen: list[Publisher] = [LogPublisher(log_format)] if LogPublisher.name in names else []
    return [*chosen, WebhookPublisher()]

"""The publishers: one package for each, with its `Publisher` in `publisher.py`.

CONTRIBUTING.md describes how to add one.
"""

from __future__ import annotations

from outbox.publisher import Publisher
from outbox.publishers.log.publisher import LogPublisher
from outbox.publishers.webhook.publisher import WebhookPublisher


def build_publishers() -> list[Publisher]:
    """Build the publishers of this deployment. An event counts as published when all of them have accepted it."""
    return [LogPublisher(), WebhookPublisher()]

"""What other modules may use of the outbox."""

from outbox.dispatcher import Dispatched, Dispatcher
from outbox.envelope import Envelope
from outbox.maintenance import prune, replay
from outbox.models import OutboxEvent, OutboxPartition, WebhookDelivery, WebhookEndpoint
from outbox.parking import parked_events, skip, unpark
from outbox.publisher import PoisonEvent, Publisher, PublishError
from outbox.publishers.log import LogPublisher
from outbox.publishers.webhook import WebhookPublisher
from outbox.status import Status, status
from outbox.timeline import forget, timeline_of
from outbox.webhooks.delivery import Delivered, Send, WebhookDeliverer, WebhookRequest, WebhookResult
from outbox.webhooks.endpoints import add_endpoint
from outbox.writer import Event, append

__all__ = [
    "Delivered",
    "Dispatched",
    "Dispatcher",
    "Envelope",
    "Event",
    "LogPublisher",
    "OutboxEvent",
    "OutboxPartition",
    "PoisonEvent",
    "PublishError",
    "Publisher",
    "Send",
    "Status",
    "WebhookDeliverer",
    "WebhookDelivery",
    "WebhookEndpoint",
    "WebhookPublisher",
    "WebhookRequest",
    "WebhookResult",
    "add_endpoint",
    "append",
    "forget",
    "parked_events",
    "prune",
    "replay",
    "skip",
    "status",
    "timeline_of",
    "unpark",
]

"""What other modules may use of the outbox."""

from outbox.browse import (
    EventFilter,
    EventPage,
    Listed,
    cause_of,
    deliveries_of,
    event_of,
    list_events,
    newer_than,
    state_of,
    unpublished_of,
)
from outbox.dispatcher import Dispatched, Dispatcher
from outbox.envelope import Envelope
from outbox.maintenance import prune, replay, replayable
from outbox.models import OutboxEvent, OutboxPartition, WebhookDelivery, WebhookEndpoint
from outbox.parking import park, parked_events, skip, unpark
from outbox.publisher import PoisonEvent, Publisher, PublishError
from outbox.publishers.log import LogPublisher
from outbox.publishers.webhook import WebhookPublisher
from outbox.status import Status, partitions, status, waiting_by_kind
from outbox.timeline import forget, timeline_of
from outbox.webhooks.delivery import Delivered, Transport, WebhookDeliverer, WebhookRequest, WebhookResult
from outbox.webhooks.endpoints import (
    add_endpoint,
    change_endpoint,
    delete_endpoint,
    find_endpoint,
    reencrypt_endpoint_secrets,
    refuse_used,
    switch_endpoint,
)
from outbox.webhooks.recovery import EndpointQueue, endpoint_of, endpoint_queues, send_again
from outbox.writer import Event, append

__all__ = [
    "Delivered",
    "Dispatched",
    "Dispatcher",
    "EndpointQueue",
    "Envelope",
    "Event",
    "EventFilter",
    "EventPage",
    "Listed",
    "LogPublisher",
    "OutboxEvent",
    "OutboxPartition",
    "PoisonEvent",
    "PublishError",
    "Publisher",
    "Status",
    "Transport",
    "WebhookDeliverer",
    "WebhookDelivery",
    "WebhookEndpoint",
    "WebhookPublisher",
    "WebhookRequest",
    "WebhookResult",
    "add_endpoint",
    "append",
    "cause_of",
    "change_endpoint",
    "delete_endpoint",
    "deliveries_of",
    "endpoint_of",
    "endpoint_queues",
    "event_of",
    "find_endpoint",
    "forget",
    "list_events",
    "newer_than",
    "park",
    "parked_events",
    "partitions",
    "prune",
    "reencrypt_endpoint_secrets",
    "refuse_used",
    "replay",
    "replayable",
    "send_again",
    "skip",
    "state_of",
    "status",
    "switch_endpoint",
    "timeline_of",
    "unpark",
    "unpublished_of",
    "waiting_by_kind",
]

"""Where the parts are put together: by which egress calls and webhooks leave."""

from __future__ import annotations

import structlog
from django.conf import settings

from eventservice.runtime.dispatcher import DispatcherRole
from eventservice.runtime.open_files import raise_open_files_limit
from eventservice.runtime.webhook_sender import WebhookSender
from execution.addresses import AddressPolicy
from execution.egress import Egress, Limits
from orchestration.engine.capacity import EngineLimits
from orchestration.engine.engine import Engine

log = structlog.get_logger(__name__)

# What a durable timer's callback has around its payload.
ENVELOPE_BYTES = 16_384
# Webhook deliveries under way at the most.
MOST_WEBHOOKS = 512


def build_egress() -> Egress:
    raise_open_files_limit()
    limits = Limits(
        request_body=settings.API_MAX_BODY_BYTES + ENVELOPE_BYTES,
        in_flight=settings.ENGINE_IN_FLIGHT,
        per_host_connections=settings.ENGINE_PER_HOST,
    )
    return Egress(AddressPolicy.from_settings(), limits)


def start_egress() -> Egress:
    egress = build_egress()
    egress.start()
    return egress


def build_engine() -> Engine:
    egress = start_egress()
    if egress.capacity < settings.ENGINE_IN_FLIGHT // 2:
        log.warning("few_open_files", connections=egress.capacity, wanted=settings.ENGINE_IN_FLIGHT)
    limits = EngineLimits(
        batch=settings.ENGINE_BATCH,
        in_flight=egress.capacity,
        # One host that hangs must leave places for the others.
        per_host=min(settings.ENGINE_PER_HOST, max(1, egress.capacity // 2)),
    )
    return Engine(egress, limits)


def build_dispatcher() -> DispatcherRole:
    return DispatcherRole(WebhookSender(start_egress), places=min(MOST_WEBHOOKS, build_egress().capacity))

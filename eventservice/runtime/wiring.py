"""Builds the roles from the settings: the engine and the dispatcher, with the egress by which calls and webhooks leave."""

from __future__ import annotations

from functools import partial

from django.conf import settings

from eventservice.kernel.logging import get_logger
from eventservice.runtime.dispatcher import DispatcherRole, EgressTransport
from eventservice.runtime.open_files import raise_open_files_limit
from eventservice.tenants.directory import get_profile
from execution.addresses import AddressPolicy
from execution.egress import Egress, Limits
from orchestration.engine.capacity import EngineLimits
from orchestration.engine.engine import Engine
from orchestration.feeder.thread import FeederThread
from outbox.publishers import build_brokers, build_publishers
from timers.stores.factory import build_store

log = get_logger(__name__)

# What the callback of a durable timer has around its payload.
MAX_CALLBACK_ENVELOPE_BYTES = 16_384
MAX_WEBHOOK_DELIVERIES_IN_FLIGHT = 512


def build_egress() -> Egress:
    raise_open_files_limit()
    limits = Limits(
        request_body=settings.API_MAX_BODY_BYTES + MAX_CALLBACK_ENVELOPE_BYTES,
        in_flight=settings.ENGINE_IN_FLIGHT,
        per_host_connections=settings.ENGINE_PER_HOST,
    )
    return Egress(AddressPolicy.from_settings(), limits)


def start_egress() -> Egress:
    egress = build_egress()
    egress.start()
    return egress


def build_engine(cluster: str = "") -> Engine:
    """Build an engine. A worker gives the name of its cluster."""
    egress = start_egress()
    if egress.capacity < settings.ENGINE_IN_FLIGHT // 2:
        log.warning("few_open_files", connections=egress.capacity, wanted=settings.ENGINE_IN_FLIGHT)
    limits = EngineLimits(
        max_batch=settings.ENGINE_BATCH,
        max_in_flight=egress.capacity,
        # A host that hangs must leave capacity for the others.
        max_per_host=min(settings.ENGINE_PER_HOST, max(1, egress.capacity // 2)),
    )
    feeders = [FeederThread(spec.name, partial(build_store, spec)) for spec in settings.TIMER_STORES]
    engine = Engine(
        egress, limits, poll_seconds=settings.ENGINE_POLL_SECONDS, cluster=cluster, feeders=feeders
    )
    for feeder in feeders:
        feeder.start()
    return engine


def build_dispatcher(cluster: str = "") -> DispatcherRole:
    """Build a dispatcher. A worker gives the name of its cluster."""
    return DispatcherRole(
        build_publishers(settings.PUBLISHERS, settings.LOG_FORMAT),
        EgressTransport(start_egress, lambda tenant_id: get_profile(tenant_id).allowed_hosts),
        max_in_flight=min(MAX_WEBHOOK_DELIVERIES_IN_FLIGHT, build_egress().capacity),
        brokers=build_brokers(settings.PUBLISHERS),
        cluster=cluster,
    )

"""The findings on work that waits: due calls, lost calls, and events for publishers and brokers."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta

from django.conf import settings

from eventservice.db.bounded_count import format_capped
from eventservice.kernel.findings import Finding, Severity
from eventservice.operators.formatting import format_count, format_duration
from eventservice.operators.health.cluster import ClusterState
from eventservice.operators.health.dispatch import check_pause
from eventservice.operators.health.thresholds import OUTBOX_LAG, OVERDUE, STORE_LAG
from orchestration.engine.capacity import get_max_in_flight
from orchestration.lifecycle.timer_marks import MarkBacklog, measure_marks
from orchestration.statistics.in_flight_limits import HeldBackTenant, list_held_back
from orchestration.statistics.live_counts import has_running_calls, list_overdue_tenants
from outbox.broker_queue import BrokerBacklog
from outbox.status import OutboxStatus
from timers.pause import find_pause

MAX_NAMED_LIMITED = 3
# Calls that are due for so long while no call is running are not being started.
NOT_STARTED_AFTER = timedelta(seconds=20)
LOOKS_FOR_RUNNING_CALLS, PAUSE_BETWEEN_LOOKS_SECONDS = 3, 0.1


def check_overdue(count: int, oldest: timedelta, cluster: ClusterState) -> Finding:
    """Report calls that should have been started, with the tenants and hosts whose limits hold them back."""
    severity = OVERDUE.rate(oldest) if count else Severity.OK
    if severity is Severity.OK:
        text = f"{format_capped(count)} due, none for more than {format_duration(OVERDUE.warning)}."
        return Finding("overdue_calls", severity, text)
    verb = "call is" if count == 1 else "calls are"
    return Finding(
        "overdue_calls",
        severity,
        f"{format_capped(count)} {verb} overdue, the oldest by {format_duration(oldest)}.",
        _explain_overdue(cluster),
    )


def _explain_overdue(cluster: ClusterState) -> str:
    if not cluster.engines:
        return "No engine is running."
    held_back = list_held_back(None, cluster.now - OVERDUE.warning, cluster.engines)
    if not held_back:
        return (
            "No tenant with overdue calls is at its in-flight limit. The engines may be too busy, or have just begun to catch "
            f"up. A host may also be at ENGINE_PER_HOST ({settings.ENGINE_PER_HOST:,}). Otherwise start more engines."
        )
    reasons = [_describe_limit(one) for one in held_back[:MAX_NAMED_LIMITED]]
    if len(held_back) > MAX_NAMED_LIMITED:
        reasons.append(f"{len(held_back) - MAX_NAMED_LIMITED} more tenants are at their limits.")
    return (
        f"{' '.join(reasons)} If the receiver can take more, raise the limit: `manage.py tenant limits "
        f"{held_back[0].tenant.name} --max-in-flight NUMBER`."
    )


def _describe_limit(one: HeldBackTenant) -> str:
    if not one.host:
        return f"{one.tenant.name} is at its in-flight limit: {one.running:,} calls of {one.limit:,} are running."
    return (
        f"{one.host} has as many calls of {one.tenant.name} in flight as one host may: {one.host_running:,}, of an in-flight "
        f"limit of {one.limit:,}. One host gets at most three quarters of it, and less while others use it."
    )


def check_starting(now: datetime) -> Finding:
    """Report that due calls are not being started, whatever the reason.

    A tenant or host at its limit has calls that run, and a tenant whose secret cannot be read holds up only itself.
    """
    tenants = [
        tenant for tenant in list_overdue_tenants(now - NOT_STARTED_AFTER) if get_max_in_flight(tenant)
    ]
    # Between two batches of short calls nothing runs for a moment.
    if not tenants or any(_sees_running_call(attempt) for attempt in range(LOOKS_FOR_RUNNING_CALLS)):
        return Finding("starting", Severity.OK, "Due calls are being started.")
    if pause := find_pause():
        return replace(check_pause(pause, now), code="starting", severity=Severity.ERROR)
    return Finding(
        "starting",
        Severity.ERROR,
        f"Calls have been due for more than {format_duration(NOT_STARTED_AFTER)}, and none is running: nothing starts them.",
        "See the log of the engines. If there is no reason in it, restart them, and check whether the database's clock has "
        "been set.",
    )


def _sees_running_call(attempt: int) -> bool:
    if attempt:
        time.sleep(PAUSE_BETWEEN_LOOKS_SECONDS)
    return has_running_calls()


def check_lost_calls(count: int) -> Finding:
    if not count:
        return Finding("lost_calls", Severity.OK, "No running call is past its deadline.")
    verb = "call is" if count == 1 else "calls are"
    return Finding(
        "lost_calls",
        Severity.ERROR,
        f"{format_capped(count)} running {verb} past the deadline.",
        "A running engine resolves them within seconds. If none can run, use `manage.py requeue_stuck`.",
    )


def check_outbox_lag(outbox: OutboxStatus) -> Finding:
    severity = OUTBOX_LAG.rate(outbox.lag)
    if severity is Severity.OK:
        return Finding(
            "waiting_events", severity, f"{format_count(outbox.unpublished, 'unpublished event')}."
        )
    count = format_count(outbox.unpublished, "event")
    text = f"{count} unpublished, the oldest for {format_duration(outbox.lag)}."
    remedy = (
        "The log of the dispatchers says why. `manage.py outbox status` lists them."
        if outbox.partitions_by_owner
        else "They are published as soon as a dispatcher runs."
    )
    return Finding("waiting_events", severity, text, remedy)


def check_timer_stores(now: datetime) -> list[Finding]:
    """Return a finding for each timer store to which ended attempts are to be written, or one that is OK."""
    found = [_check_timer_store(backlog, now - backlog.oldest) for backlog in measure_marks()]
    return found or [
        Finding("waiting_for_timer_store", Severity.OK, "No ended attempt waits for a timer store.")
    ]


def _check_timer_store(backlog: MarkBacklog, lag: timedelta) -> Finding:
    severity = STORE_LAG.rate(lag)
    text = f"{format_count(backlog.marks, 'ended attempt')} not written to the timer store {backlog.store}"
    if severity is Severity.OK:
        return Finding("waiting_for_timer_store", severity, f"{text}.")
    return Finding(
        "waiting_for_timer_store",
        severity,
        f"{text}, the oldest for {format_duration(lag)}.",
        "The store may be unreachable, and then its timers do not start: see `manage.py doctor`. If no engine runs, they are "
        "written as soon as one does.",
    )


def check_parked_events(outbox: OutboxStatus) -> Finding:
    if not outbox.parked:
        return Finding("parked_events", Severity.OK, "No event is parked.")
    behind = f"; {outbox.waiting_behind_parked:,} wait behind" if outbox.waiting_behind_parked else ""
    verb = "event is" if outbox.parked == 1 else "events are"
    return Finding(
        "parked_events",
        Severity.ERROR,
        f"{outbox.parked:,} {verb} parked: rejected by a publisher, or parked by an operator{behind}.",
        "Retry or skip them on the Events page, or with `manage.py outbox`.",
    )


def check_brokers(outbox: OutboxStatus) -> list[Finding]:
    """Return a finding for each broker for which events wait, or one that is OK."""
    names = {spec.name for spec in settings.PUBLISHERS}
    found = [_check_broker(backlog, backlog.publisher in names) for backlog in outbox.broker_backlogs]
    return found or [Finding("waiting_for_broker", Severity.OK, "No event waits for a broker.")]


def _check_broker(backlog: BrokerBacklog, is_used: bool) -> Finding:
    count = format_count(backlog.count, "event")
    text = f"{count} for the publisher {backlog.publisher}, the oldest for {format_duration(backlog.lag)}."
    if not is_used:
        return Finding(
            "waiting_for_broker",
            Severity.WARNING,
            text,
            f"PUBLISHERS no longer names it. Add it again, or run `manage.py outbox discard {backlog.publisher}`.",
        )
    severity = OUTBOX_LAG.rate(backlog.lag)
    if severity is Severity.OK:
        return Finding("waiting_for_broker", severity, text)
    error = f" {backlog.last_error}" if backlog.last_error else ""
    return Finding(
        "waiting_for_broker", severity, f"{text}{error}", "The events are kept until the broker accepts them."
    )

"""Functions that are let go at the same moment, each in a thread and on a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import UUID

from django.db import OperationalError, connection, transaction

from eventservice.db.leases import Fenced
from eventservice.tenants.models import Tenant
from execution.outcome import Outcome, Responded, Timings
from orchestration import lifecycle
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.lifecycle import StartedCall
from orchestration.models import ServiceCall
from outbox.models import OutboxEvent
from tests.process_harness import report
from timers.membership import Membership, ensure_shards
from timers.poller import Poller

ROUNDS = 8
DEADLOCK = 1213
SHARDS = 16


def race(*functions: Callable[[], Any]) -> list[Any]:
    """What each returned, or the exception that it ended with.

    MariaDB ends one of two transactions that lock a timer by different indexes: then that one begins again, as
    the engine does and as a client must. What is shown is that nothing of it had been written.
    """
    start = threading.Barrier(len(functions))

    def run(function: Callable[[], Any]) -> Any:
        try:
            connection.ensure_connection()
            start.wait(timeout=10)
            return _until_no_deadlock(function)
        finally:
            connection.close()

    with ThreadPoolExecutor(len(functions)) as pool:
        return [_end(future) for future in [pool.submit(run, function) for function in functions]]


def _until_no_deadlock(function: Callable[[], Any]) -> Any:
    while True:
        try:
            return function()
        except OperationalError as error:
            if connection.vendor != "mysql" or error.args[0] != DEADLOCK:
                raise
            report("a deadlock")


def _end(future: Future[Any]) -> Any:
    return future.exception(timeout=60) or future.result()


class Node:
    """What an engine does between the database and the network, without the network."""

    def __init__(self) -> None:
        self.membership = Membership()
        self.poller = Poller(self.membership.leases)
        self.membership.join()
        ensure_shards(SHARDS)

    def claim_all(self) -> None:
        for shard in range(SHARDS):
            self.membership.leases.claim(shard)

    def start_due(self, limit: int = 500) -> list[StartedCall]:
        """Nothing, when it is fenced."""
        try:
            with transaction.atomic():
                return lifecycle.start(self.poller.claim_due(limit), self.membership.owner_id)
        except Fenced:
            return []

    def finish(self, started: StartedCall, status: int = 200) -> int:
        ended: Outcome = Responded(
            key=started.key.execution_id, status=status, headers=(), body=b"", body_size=0, timings=Timings()
        )
        return lifecycle.finish([(started.key, ended)], self.membership.fence)


def node() -> Node:
    alone = Node()
    alone.claim_all()
    return alone


def submitted(tenant: Tenant, **terms: Any) -> UUID:
    """A call that is due."""
    command = SubmitServiceCall(
        tenant.tenant_id, "race", RequestSpec("POST", "http://example.test/"), **terms
    )
    (result,) = lifecycle.submit([command])
    return result.service_call_id


def status_of(tenant: Tenant, service_call_id: UUID) -> str:
    calls = ServiceCall.objects.for_tenant(tenant.tenant_id)
    return str(calls.values_list("status", flat=True).get(service_call_id=service_call_id))


def story_of(tenant: Tenant, service_call_id: UUID) -> list[str]:
    """The call's events, which must be numbered without a gap."""
    events = OutboxEvent.objects.for_tenant(tenant.tenant_id).filter(aggregate_id=service_call_id)
    rows = list(events.order_by("aggregate_seq").values_list("aggregate_seq", "event_type"))
    assert [seq for seq, _ in rows] == list(range(1, len(rows) + 1))
    return [kind.removeprefix("ServiceCall") for _, kind in rows]

"""Trouble of the database that outlasts every patience ends no dispatcher: it publishes when that is over.

SQLite: another process holds the write lock for longer than anybody waits. The others: the server ends the
dispatcher's connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from eventservice.tenants.directory import create_tenant
from outbox.models import OutboxEvent
from tests.database_connections import end_other_connections
from tests.process_harness import Program, Stage, accept, call, until

TROUBLED = "step_failed"


def all_published() -> bool:
    events = OutboxEvent.across_tenants.all()
    return events.exists() and not events.filter(published_at=None).exists()


def in_trouble(dispatcher: Program) -> bool:
    assert dispatcher.running, dispatcher.log
    return TROUBLED in dispatcher.log


@contextmanager
def write_lock() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN IMMEDIATE")
        yield
        cursor.execute("ROLLBACK")


def disturb(dispatcher: Program) -> None:
    def disconnected() -> bool:
        end_other_connections()
        return in_trouble(dispatcher)

    if connection.vendor == "sqlite":
        with write_lock():
            until(lambda: in_trouble(dispatcher), "the dispatcher has lost patience")
    else:
        until(disconnected, "the dispatcher notices")


@pytest.mark.chaos
@pytest.mark.parametrize(
    "start",
    [
        pytest.param(lambda stage: stage.manage("dispatcher", "dispatch_outbox"), id="command"),
        pytest.param(lambda stage: stage.cluster(), id="cluster"),
    ],
)
def test_it_publishes_when_the_trouble_is_over(stage: Stage, start: Callable[[Stage], Any]) -> None:
    tenant = create_tenant("acme").tenant_id
    dispatcher = start(stage)
    accept([call(tenant, "http://example.test/", due_in=3600)])
    until(all_published, "it publishes")
    disturb(dispatcher)
    accept([call(tenant, "http://example.test/", due_in=3600)])
    until(all_published, "it publishes again")
    stage.stop(dispatcher)
    assert dispatcher.exit_code == 0

"""Database trouble that exceeds every timeout ends no dispatcher: it publishes again when the trouble is over.

SQLite: another process holds the write lock for longer than anyone waits. The others: the server ends the
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
from tests.process_harness import ProcessHarness, Program, build_call, submit_calls, wait_until

TROUBLE_EVENT = "step_failed"


def is_all_published() -> bool:
    events = OutboxEvent.across_tenants.all()
    return events.exists() and not events.filter(published_at=None).exists()


def has_noticed_trouble(dispatcher: Program) -> bool:
    assert dispatcher.is_running, dispatcher.log
    return TROUBLE_EVENT in dispatcher.log


@contextmanager
def hold_write_lock() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN IMMEDIATE")
        yield
        cursor.execute("ROLLBACK")


def cause_trouble(dispatcher: Program) -> None:
    def disconnect() -> bool:
        end_other_connections()
        return has_noticed_trouble(dispatcher)

    if connection.vendor == "sqlite":
        with hold_write_lock():
            wait_until(lambda: has_noticed_trouble(dispatcher), "the dispatcher notices")
    else:
        wait_until(disconnect, "the dispatcher notices")


@pytest.mark.chaos
@pytest.mark.parametrize(
    "start",
    [
        pytest.param(lambda harness: harness.start_command("dispatcher", "dispatch_outbox"), id="command"),
        pytest.param(lambda harness: harness.start_cluster(), id="cluster"),
    ],
)
def test_it_publishes_when_the_trouble_is_over(
    harness: ProcessHarness, start: Callable[[ProcessHarness], Any]
) -> None:
    tenant = create_tenant("acme").tenant_id
    dispatcher = start(harness)
    submit_calls([build_call(tenant, "http://example.test/", due_in=3600)])
    wait_until(is_all_published, "it publishes")
    cause_trouble(dispatcher)
    submit_calls([build_call(tenant, "http://example.test/", due_in=3600)])
    wait_until(is_all_published, "it publishes again")
    harness.stop(dispatcher)
    assert dispatcher.exit_code == 0

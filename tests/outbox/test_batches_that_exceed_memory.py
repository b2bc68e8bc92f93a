"""A pass that does not fit into memory is repeated with fewer events, down to one, and nothing is lost or out of order."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence

import pytest
from django.db import transaction

from eventservice.kernel.ids import new_id
from outbox.dispatcher import Dispatcher
from outbox.envelope import Envelope
from outbox.models import OutboxEvent
from outbox.writer import append_events
from tests.outbox.support import RecordingPublisher, build_event
from tests.process_harness import ProcessHarness, harness, wait_until

__all__ = ["harness"]

# Sets the limit of the address space, in MB above what the process has when everything is loaded, and runs the role.
LIMITED = """
import resource, sys
import django; django.setup()
from eventservice.management.commands import dispatch_outbox
from eventservice.runtime.wiring import build_dispatcher
from django.core.management import execute_from_command_line
def build():
    role = build_dispatcher()
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + int(sys.argv[1]) * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return role
dispatch_outbox.build_dispatcher = build
execute_from_command_line(["manage.py", "dispatch_outbox"])
"""


class ForgetfulPublisher(RecordingPublisher):
    """A publisher that has room for so many events, and for none of one aggregate."""

    def __init__(self, room: int, too_large: uuid.UUID | None = None) -> None:
        super().__init__()
        self.room, self.too_large = room, too_large

    def publish(self, events: Sequence[Envelope]) -> None:
        if len(events) > self.room or any(event.aggregate_id == self.too_large for event in events):
            raise MemoryError
        super().publish(events)


def store(aggregates: Sequence[uuid.UUID], each: int) -> None:
    with transaction.atomic():
        append_events(build_event(aggregate, seq) for seq in range(1, each + 1) for aggregate in aggregates)


def dispatch(publisher: RecordingPublisher, passes: int) -> None:
    dispatcher = Dispatcher(new_id(), [publisher])
    for _ in range(passes):
        dispatcher.dispatch_once()


@pytest.mark.django_db(transaction=True)
def test_smaller_batches_publish_all_events_in_order() -> None:
    aggregates = [new_id() for _ in range(6)]
    store(aggregates, 10)
    publisher = ForgetfulPublisher(room=7)
    dispatch(publisher, 60)
    assert [publisher.sequences(aggregate) for aggregate in aggregates] == [list(range(1, 11))] * 6
    assert not OutboxEvent.across_tenants.filter(published_at=None).exists()


@pytest.mark.django_db(transaction=True)
def test_one_event_that_never_fits_holds_back_only_its_partition() -> None:
    large, *others = [new_id() for _ in range(6)]
    store([large, *others], 1)
    partition = OutboxEvent.across_tenants.get(aggregate_id=large).partition
    publisher = ForgetfulPublisher(room=100, too_large=large)
    dispatch(publisher, 40)
    waiting = OutboxEvent.across_tenants.filter(published_at=None)
    assert large in set(waiting.values_list("aggregate_id", flat=True))
    assert set(waiting.values_list("partition", flat=True)) == {partition}


def test_a_dispatcher_with_little_memory_publishes_large_events(harness: ProcessHarness) -> None:
    data = {"items": [{"n": 1}] * 60_000}
    for _ in range(40):
        with transaction.atomic():
            append_events([build_event(new_id(), 1, data=data)])
    program = harness.start("dispatcher", [sys.executable, "-c", LIMITED, "40"], MALLOC_ARENA_MAX="1")
    wait_until(lambda: not OutboxEvent.across_tenants.filter(published_at=None).exists(), "all is published")
    assert program.is_running

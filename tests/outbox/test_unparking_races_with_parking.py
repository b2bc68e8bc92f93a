"""The dispatcher cannot hold another event of an aggregate that is being unparked: nothing would release it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from django.db import transaction

from eventservice.kernel.ids import new_id
from outbox.dispatcher import Dispatcher
from outbox.models import OutboxEvent
from outbox.parking import list_parked_events, unpark
from tests.outbox.support import RecordingPublisher, build_dispatcher, drain, store_run

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_event_that_the_dispatcher_read_as_held_is_not_left_behind(
    elsewhere: Callable[..., Future[Any]],
) -> None:
    blocked = new_id()
    poison = store_run(blocked, 2)[0]
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    drain(build_dispatcher(publisher))
    publisher.poison = set()
    store_run(blocked, 1, first=3)

    class UnparkedWhileRecording(Dispatcher):
        """A dispatcher that has read that the aggregate is parked, and is about to hold event 3 when it is unparked."""

        def _record(self, outcome: Any) -> tuple[int, int]:
            unparked.append(elsewhere(_unpark_slowly, list_parked_events().get().id, unlocked))
            assert unlocked.wait(5)
            return super()._record(outcome)

    unlocked = threading.Event()
    unparked: list[Future[bool]] = []
    racing = UnparkedWhileRecording(new_id(), [publisher])
    racing.dispatch_once()
    assert unparked[0].result(10)
    racing.release()

    drain(build_dispatcher(publisher))
    assert publisher.sequences(blocked) == [1, 2, 3]
    assert not OutboxEvent.across_tenants.filter(published_at=None).exists()


def _unpark_slowly(key: int, unlocked: threading.Event) -> bool:
    with transaction.atomic():
        done = unpark(key)
        unlocked.set()
        # Long enough for a dispatcher that is not excluded to look, and to find the event still parked.
        threading.Event().wait(0.2)
    return done

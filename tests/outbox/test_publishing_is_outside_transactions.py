"""A publisher may take long: no transaction is open meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from django.db import connection

from eventservice.kernel.ids import new_id
from outbox.envelope import Envelope
from tests.outbox.support import RecordingPublisher, build_dispatcher, store_run


@pytest.mark.django_db(transaction=True)
def test_no_transaction_is_open_while_a_publisher_works() -> None:
    class ChecksTransaction(RecordingPublisher):
        def publish(self, events: Sequence[Envelope]) -> None:
            assert not connection.in_atomic_block
            super().publish(events)

    store_run(new_id(), 2)
    publisher = ChecksTransaction()
    assert build_dispatcher(publisher).dispatch_once().published == 2

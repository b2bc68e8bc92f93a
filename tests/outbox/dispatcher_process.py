"""A dispatcher in a process of its own, to be killed: `python -m tests.outbox.dispatcher_process OWNER LIVE RECORD WAY`.

LIVE is a file with the ids of the live owners. Each event that it publishes becomes a line of RECORD. WAY is `direct`, or
`queue` for the way by which events reach brokers, or the URL of a broker, to which they go instead of RECORD.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outbox.envelope import Envelope


class FilePublisher:
    name = "main"

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def publish(self, events: Sequence[Envelope]) -> None:
        # One write for each event, so that a kill can happen between two.
        for event in events:
            os.write(self._file, f"{event.aggregate_id} {event.sequence} {event.event_id}\n".encode())

    def close(self) -> None:
        os.close(self._file)


def main(owner: str, live: str, record: str, way: str) -> None:
    import django

    django.setup()
    from outbox.broker_queue import BrokerQueue, BrokerSender
    from outbox.dispatcher import Dispatcher
    from outbox.publisher_spec import BrokerUrl
    from outbox.publishers import build_broker

    def live_owners() -> list[uuid.UUID]:
        return [uuid.UUID(line) for line in Path(live).read_text().split()]

    file = FilePublisher(record)
    publisher = file if way == "direct" else BrokerQueue("main")
    sender = BrokerSender(build_broker("main", BrokerUrl.parse(way)) if "://" in way else file)
    dispatcher = Dispatcher(
        uuid.UUID(owner), [publisher], live_owners=live_owners, lease_length=timedelta(seconds=1)
    )
    while True:
        done = dispatcher.dispatch_once()
        if way != "direct":
            sender.expect_events()
            sender.send_once(dispatcher.partitions, dispatcher.fence)
        time.sleep(min(done.next_wait, 0.02))


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "eventservice.settings")
    main(*sys.argv[1:])

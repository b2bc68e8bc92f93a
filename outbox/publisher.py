"""The port through which events leave: what every publisher does, and how it reports what it could not do.

The publishers are in `outbox.publishers`. tests/contracts/test_publishers.py asserts this contract for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outbox.envelope import Envelope


class PublishError(Exception):
    """The receiver does not accept events now: the dispatcher tries again later. No event is to blame.

    `accepted` is the number of events, counted from the first, that the receiver has accepted for certain.
    """

    def __init__(self, message: str, *, accepted: int = 0) -> None:
        super().__init__(message)
        self.accepted = accepted


class PoisonEvent(PublishError):
    """The receiver will never accept the event that follows the `accepted` ones.

    Later events of its aggregate were not sent. Those of others may have been; they come again.
    """


class Publisher(Protocol):
    name: str

    def publish(self, events: Sequence[Envelope]) -> None:
        """Return when the receiver has durably accepted all of the events, in this order.

        Called outside of transactions. After a failure or a replay the same events come again, with the same
        `event_id`: receivers recognize repeats by it. An exception that is not a PublishError counts as one.
        """


class Broker(Publisher, Protocol):
    """A publisher that keeps connections. It begins them in `publish`, after a failure anew, because processes fork before."""

    def close(self) -> None:
        """End the connections, without an exception. The next `publish` begins others."""

"""The port through which events leave: what a publisher is given, and how it says what it could not do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outbox.envelope import Envelope


class PublishError(Exception):
    """The other side does not take events now: try again later. No event is to blame.

    `accepted` says how many, from the first, it has taken for certain.
    """

    def __init__(self, message: str, *, accepted: int = 0) -> None:
        super().__init__(message)
        self.accepted = accepted


class PoisonEvent(PublishError):
    """The other side will never take the event after the `accepted` ones. Those after it have not been sent."""


class Publisher(Protocol):
    name: str

    def publish(self, events: Sequence[Envelope]) -> None:
        """Returns when the other side has taken all of them for good, in this order. Repeats keep their event_id.

        Never called inside a transaction. An exception that is not a PublishError counts as one.
        """

"""Events as lines on a stream: for log collectors, and for watching a system at work."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from eventservice.db.now import to_rfc3339
from outbox.envelope import Envelope
from outbox.publisher import PublishError


class LogPublisher:
    """Writes each event as one line, to standard output by default: as JSON, or as text like the console's log."""

    name = "log"

    def __init__(self, log_format: str = "json", stream: TextIO | None = None) -> None:
        self._format = Envelope.to_json if log_format == "json" else _format_for_people
        self._stream = stream or sys.stdout

    def publish(self, events: Sequence[Envelope]) -> None:
        try:
            # Not through logging, whose record, processors and locks for each event cost ten times as much.
            self._stream.write("".join([f"{self._format(event)}\n" for event in events]))
            self._stream.flush()
        except OSError as error:
            raise PublishError(f"The log's stream cannot be written: {error}") from error


def _format_for_people(event: Envelope) -> str:
    return (
        f"{to_rfc3339(event.time)} [event    ] {event.type:<30} [outbox] call={event.aggregate_id}"
        f" correlation_id={event.correlation_id} tenant_id={event.tenant_id}"
    )

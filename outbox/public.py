"""What other modules may use of the outbox."""

from outbox.writer import Event, append

__all__ = ["Event", "append"]

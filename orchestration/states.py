"""The states of a service call and the transitions between them. A test compares them with the diagram in
docs/lifecycle.md and with the CHECK constraint."""

from django.db import models


class Status(models.TextChoices):
    SCHEDULED = "Scheduled"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELED = "Canceled"


TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.SCHEDULED: frozenset({Status.RUNNING, Status.CANCELED}),
    Status.RUNNING: frozenset({Status.SCHEDULED, Status.SUCCEEDED, Status.FAILED, Status.CANCELED}),
    Status.SUCCEEDED: frozenset(),
    Status.FAILED: frozenset(),
    Status.CANCELED: frozenset(),
}

TERMINAL = frozenset(status for status, following in TRANSITIONS.items() if not following)
LIVE = frozenset(TRANSITIONS) - TERMINAL

# The tag of favorites. It does not count towards MAX_TAGS.
FAVORITE = "favorite"
MAX_TAGS = 20


class Delivery(models.TextChoices):
    """The treatment of a call whose attempt was interrupted, so that nobody knows whether it was sent."""

    AT_LEAST_ONCE = "at_least_once"  # the call is attempted again
    AT_MOST_ONCE = "at_most_once"  # the call fails as Interrupted


class ResponseContract(models.TextChoices):
    """The part of a response that decides whether it is a success."""

    STATUS = "status"  # its status code: 2xx
    CALLBACK = "callback"  # its body: {"ok": true}

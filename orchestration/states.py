"""The life of a service call, as data. docs/lifecycle.md draws it; a test holds both and the CHECK together."""

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

# A favourite is a call with this tag, which is not counted with the others.
FAVORITE = "favorite"
MAX_TAGS = 20


class Delivery(models.TextChoices):
    """What becomes of an attempt whose end nobody saw."""

    AT_LEAST_ONCE = "at_least_once"  # it is made again
    AT_MOST_ONCE = "at_most_once"  # the call fails as Interrupted


class ResponseContract(models.TextChoices):
    """Who judges a response."""

    STATUS = "status"  # its status code: 2xx is success
    CALLBACK = "callback"  # its body: {"ok": true}

"""System checks of the settings under which roles run as slices of django-q2."""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register


@register()
def check_slices(**kwargs: object) -> list[CheckMessage]:
    """Check the timeouts of django-q2, which itself only warns, and only of the first rule."""
    cluster: dict[str, Any] = settings.Q_CLUSTER
    rules = {
        "timeout must exceed SLICE_SECONDS + DB_LOCK_SECONDS, or slices are killed that work as they should": (
            cluster["timeout"] > settings.SLICE_SECONDS + settings.LOCK_SECONDS
        ),
        "retry must exceed timeout + SHUTDOWN_SECONDS, or a slice may run twice": (
            cluster["retry"] > cluster["timeout"] + settings.SHUTDOWN_SECONDS
        ),
        "ack_failures must be on, or a failed slice is repeated for ever": cluster["ack_failures"] is True,
        "workers must be at least 2: one for the engine, one for the dispatcher": cluster["workers"] >= 2,
        "recycle must be out of reach: a recycled worker loses its attempts in flight": cluster["recycle"]
        >= 10**6,
    }
    return [
        Error(
            f"Q_CLUSTER: {rule}.",
            hint="See docs/decisions/0001-tickets-and-role-leases.md.",
            id="eventservice.E004",
        )
        for rule, kept in rules.items()
        if not kept
    ]

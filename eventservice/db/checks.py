"""What must be right beside the environment (kernel/env.py): `manage.py check`, and every command before it starts."""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from eventservice.db.dialects import get_dialect


@register()
def check_driver(**kwargs: Any) -> list[CheckMessage]:
    return get_dialect().run_system_checks()


@register()
def lock_seconds(**kwargs: Any) -> list[CheckMessage]:
    # Beside it the lease must cover a beat that was just about to come (a quarter), and the pause after the failure.
    if not get_dialect().has_lock_timeout or settings.LOCK_SECONDS <= settings.NODE_LEASE_SECONDS / 2:
        return []
    return [
        Warning(
            "DB_LOCK_SECONDS is more than half of NODE_LEASE_SECONDS: an engine that waits so long for one locked row is"
            " taken for dead, and all that it has under way is interrupted.",
            hint="Set DB_LOCK_SECONDS lower, or NODE_LEASE_SECONDS higher.",
            id="eventservice.W002",
        )
    ]


@register()
def slices(**kwargs: Any) -> list[CheckMessage]:
    """django-q itself only warns, and of the first alone."""
    cluster: dict[str, Any] = settings.Q_CLUSTER
    rules = {
        "timeout must exceed SLICE_SECONDS + DB_LOCK_SECONDS, or slices are killed that do as they should": (
            cluster["timeout"] > settings.SLICE_SECONDS + settings.LOCK_SECONDS
        ),
        "retry must exceed timeout + SHUTDOWN_SECONDS, or slices are given out twice": (
            cluster["retry"] > cluster["timeout"] + settings.SHUTDOWN_SECONDS
        ),
        "ack_failures must be on, or a failed slice is given out again for ever": cluster["ack_failures"]
        is True,
        "workers must be at least 2: one for the engine, one for the dispatcher": cluster["workers"] >= 2,
        "recycle must be out of reach: a recycled worker drops its attempts in flight": cluster["recycle"]
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

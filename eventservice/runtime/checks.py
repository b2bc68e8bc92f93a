"""System checks of the settings under which roles run as slices of django-q2."""

from typing import Any

import django_q
from django.conf import settings
from django.core.checks import CheckMessage, Error, register

# The versions of django-q2 whose internals `django_q_patch` replaces: from the first to before the second. pyproject.toml
# pins the same.
MIN_DJANGO_Q, FIRST_UNKNOWN_DJANGO_Q = (1, 11), (1, 12)


@register()
def check_django_q_version(**kwargs: object) -> list[CheckMessage]:
    """Check that the installed django-q2 is one whose internals this release knows."""
    if MIN_DJANGO_Q <= tuple(django_q.VERSION)[:2] < FIRST_UNKNOWN_DJANGO_Q:
        return []
    installed, oldest, unknown = (
        ".".join(map(str, version)) for version in (django_q.VERSION, MIN_DJANGO_Q, FIRST_UNKNOWN_DJANGO_Q)
    )
    return [
        Error(
            f"django-q2 {installed} is installed, and this release replaces internals of {oldest} and later, before"
            f" {unknown}: a stop of the cluster could lose results.",
            hint="Run `make install`, which installs the version in requirements.lock.",
            id="eventservice.E011",
        )
    ]


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

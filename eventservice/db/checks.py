"""System checks beyond single variables (kernel/env.py). Every command runs them before it starts."""

from django.conf import settings
from django.core.checks import CheckMessage, Warning, register

from eventservice.db.dialects import get_dialect


@register()
def check_driver(**kwargs: object) -> list[CheckMessage]:
    return get_dialect().run_system_checks()


@register()
def check_lock_seconds(**kwargs: object) -> list[CheckMessage]:
    # The lease must also cover a heartbeat that was just due (a quarter of it), and the pause after the failure.
    if not get_dialect().has_lock_timeout or settings.LOCK_SECONDS <= settings.NODE_LEASE_SECONDS / 2:
        return []
    return [
        Warning(
            "DB_LOCK_SECONDS is more than half of NODE_LEASE_SECONDS: an engine that waits so long for one locked row is"
            " declared dead, and its running attempts are interrupted.",
            hint="Lower DB_LOCK_SECONDS, or raise NODE_LEASE_SECONDS.",
            id="eventservice.W002",
        )
    ]

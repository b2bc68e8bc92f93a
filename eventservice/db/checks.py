"""System checks beyond single variables (kernel/env.py). Every command runs them before it starts."""

from collections.abc import Iterator

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from eventservice.db.dialects import get_dialect
from eventservice.db.dialects.configuration import ANSWER_MARGIN_SECONDS, KEEPALIVE_SECONDS
from eventservice.db.errors import PAUSE_SECONDS


@register()
def check_driver(**kwargs: object) -> list[CheckMessage]:
    return get_dialect().run_system_checks()


@register()
def check_waits(**kwargs: object) -> list[CheckMessage]:
    """Check that each wait for the database ends before the process that waits is given up (docs/waits.md)."""
    return [
        Error(
            f"{rule}.",
            hint="docs/waits.md explains the order of the waits. Change one of these settings.",
            id="eventservice.E010",
        )
        for rule, is_kept in _list_rules()
        if not is_kept
    ]


def _list_rules() -> Iterator[tuple[str, bool]]:
    waits, dialect, frozen = settings.DATABASE_WAITS, get_dialect(), settings.FROZEN_SECONDS
    limit = f"SLICE_SECONDS + DB_LOCK_SECONDS + 5 ({frozen} s), after which a worker is declared frozen and killed"
    longest = dialect.compute_max_wait(waits) + PAUSE_SECONDS
    if not dialect.has_lock_timeout:
        yield f"The wait for SQLite's write lock ({longest:g} s) must not exceed {limit}", longest <= frozen
        return
    answer = f"DB_CONNECT_SECONDS + DB_STATEMENT_SECONDS + {ANSWER_MARGIN_SECONDS + PAUSE_SECONDS:g}"
    yield f"{answer} ({longest:g} s) must not exceed {limit}", longest <= frozen
    yield (
        f"The time that a dead server is noticed in ({KEEPALIVE_SECONDS} s) must not exceed {limit}",
        frozen >= KEEPALIVE_SECONDS,
    )
    yield (
        f"DB_LOCK_SECONDS ({waits.lock_seconds} s) must be less than DB_STATEMENT_SECONDS"
        f" ({waits.statement_seconds} s), which limits a statement with its waits for locks",
        waits.lock_seconds < waits.statement_seconds,
    )


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

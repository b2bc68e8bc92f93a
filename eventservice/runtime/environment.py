"""Reactions of a starting process to its environment and its database: a warning, a pause of dispatch, a refusal."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from django.conf import settings
from django.core.management.base import CommandError
from django.db import DatabaseError, InterfaceError, connection

from eventservice.kernel.errors import Conflict
from eventservice.kernel.logging import get_logger
from eventservice.operators.audit_log import CommandLine
from eventservice.operators.dispatch import pause
from timers.pause import find_pause, require_complete_move

log = get_logger(__name__)


def warn_of_default_environment(variables: Mapping[str, str] = os.environ) -> None:
    """Log a warning if ENVIRONMENT is not set: in production, the settings file is missing then."""
    if not variables.get("ENVIRONMENT", "").strip():
        log.warning(
            "environment_not_set",
            environment=settings.ENVIRONMENT,
            meaning="for a developer's machine only: keys are well-known, and calls can reach servers on this machine",
            remedy="Set ENVIRONMENT=production, or ENVIRONMENT=development to suppress this warning.",
        )


def apply_dispatch_setting() -> None:
    """Pause dispatch, before this process sends anything, if DISPATCH says so. An operator resumes it."""
    if settings.DISPATCH == "paused":
        pause(CommandLine(), "A process was started with DISPATCH=paused.")


def refuse_incomplete_move() -> None:
    """Raise CommandError in a database that `manage.py move_database` has not filled completely. One that is unavailable passes."""
    try:
        with suppress(DatabaseError, InterfaceError):
            require_complete_move(find_pause())
    except Conflict as refusal:
        raise CommandError(refusal.message) from refusal
    finally:
        connection.close()

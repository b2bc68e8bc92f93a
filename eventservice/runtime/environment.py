"""Reactions of a starting process to its environment: a warning if nobody has said where it runs, and a pause of dispatch."""

from __future__ import annotations

import os
from collections.abc import Mapping

from django.conf import settings

from eventservice.kernel.logging import get_logger
from eventservice.operators.audit_log import CommandLine
from eventservice.operators.dispatch import pause

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

"""The warning of a process that runs as on a developer's machine because nobody has said where it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping

from django.conf import settings

from eventservice.kernel.logging import get_logger

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

"""Django's system checks of the timers: every store in `TIMER_STORES` can be built."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error

from timers.stores.factory import build_store
from timers.stores.port import NO_CELL


def check_timer_stores(**options: Any) -> list[CheckMessage]:
    """Report stores whose URL cannot be used, or whose client library is missing. Nothing is connected."""
    errors: list[CheckMessage] = []
    for spec in settings.TIMER_STORES:
        try:
            build_store(spec, NO_CELL).close()
        except ValueError as problem:
            errors.append(
                Error(
                    f"TIMER_STORES: {problem}.",
                    hint="docs/timer-stores.md describes the URLs and the packages that they need.",
                    id="timers.E001",
                )
            )
    return errors

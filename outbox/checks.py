"""Django's system checks of the outbox: every publisher in `PUBLISHERS` can be built."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error

from outbox.publishers import build_broker


def check_publishers(**options: Any) -> list[CheckMessage]:
    """Report publishers whose URL has unknown options, or whose client library is missing. Nothing is connected."""
    errors: list[CheckMessage] = []
    for spec in settings.PUBLISHERS:
        try:
            if spec.url:
                build_broker(spec.name, spec.url)
        except ValueError as problem:
            errors.append(
                Error(
                    f"PUBLISHERS: {problem}.",
                    hint="docs/brokers.md describes the URLs. `make install` installs the client libraries.",
                    id="outbox.E001",
                )
            )
    return errors

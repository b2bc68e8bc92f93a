"""What must be right before the system runs: `manage.py check`, and every command before it starts."""

from typing import Any

from cryptography.fernet import Fernet
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.db import connection

from eventservice.sqlite.library import FIXED


@register()
def sqlite_library(**kwargs: Any) -> list[CheckMessage]:
    library: Any = connection.Database  # type: ignore[attr-defined]
    if connection.vendor != "sqlite" or library.sqlite_version_info >= FIXED:
        return []
    return [
        Warning(
            f"SQLite {library.sqlite_version} can corrupt a database in WAL mode.",
            hint="Install pysqlite3 (pinned in requirements.lock), or a Python with SQLite 3.51.3 or newer.",
            id="eventservice.W001",
        )
    ]


@register()
def slices(**kwargs: Any) -> list[CheckMessage]:
    """django-q itself only warns, and of the first alone."""
    cluster: dict[str, Any] = settings.Q_CLUSTER
    rules = {
        "timeout must exceed SLICE_SECONDS + SHUTDOWN_SECONDS, or slices are killed that do as they should": (
            cluster["timeout"] > settings.SLICE_SECONDS + settings.SHUTDOWN_SECONDS
        ),
        "retry must exceed timeout, or slices are given out twice": cluster["retry"] > cluster["timeout"],
        "ack_failures must be on, or a failed slice is given out again for ever": cluster["ack_failures"]
        is True,
        "workers must be at least 2: one for the engine, one for the dispatcher": cluster["workers"] >= 2,
        "recycle must be out of reach: a recycled worker drops its attempts in flight": cluster["recycle"]
        >= 10**6,
    }
    return [
        Error(
            f"Q_CLUSTER: {rule}.",
            hint="See docs/decisions/0001-seats-and-tickets.md.",
            id="eventservice.E004",
        )
        for rule, kept in rules.items()
        if not kept
    ]


@register()
def encryption_keys(**kwargs: Any) -> list[CheckMessage]:
    wrong = [number for number, key in enumerate(settings.ENCRYPTION_KEYS, 1) if not _is_key(key)]
    hint = "Each must be 32 bytes in URL-safe base64, as `manage.py newkey` prints them."
    # By its place in the list: a key that is nearly right is still nearly a secret.
    return [
        Error(f"ENCRYPTION_KEYS: key {n} is not a key.", hint=hint, id="eventservice.E005") for n in wrong
    ]


def _is_key(text: str) -> bool:
    try:
        Fernet(text)
    except ValueError:
        return False
    return True


@register()
def production(**kwargs: Any) -> list[CheckMessage]:
    if not settings.PRODUCTION:
        return []
    faults: list[CheckMessage] = []
    if not settings.ENCRYPTION_KEYS:
        hint = "Set ENCRYPTION_KEYS to the output of `manage.py newkey`."
        faults.append(Error("Secrets cannot be encrypted at rest.", hint=hint, id="eventservice.E001"))
    if settings.DEBUG:
        faults.append(Error("DEBUG is on in production.", hint="Unset DEBUG.", id="eventservice.E002"))
    if not settings.ALLOWED_HOSTS:
        hint = "Set ALLOWED_HOSTS to the names that clients use, comma separated."
        faults.append(Error("No host name is served.", hint=hint, id="eventservice.E003"))
    return faults

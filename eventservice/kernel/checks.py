"""What must be right before the system runs: `manage.py check`, and every command before it starts."""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.db import connection

from eventservice.sqlite.library import FIXED


@register()
def sqlite_library(**kwargs: Any) -> list[CheckMessage]:
    if connection.vendor != "sqlite" or connection.Database.sqlite_version_info >= FIXED:
        return []
    return [
        Warning(
            f"SQLite {connection.Database.sqlite_version} can corrupt a database in WAL mode.",
            hint="Install pysqlite3 (pinned in requirements.lock), or a Python with SQLite 3.51.3 or newer.",
            id="eventservice.W001",
        )
    ]


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

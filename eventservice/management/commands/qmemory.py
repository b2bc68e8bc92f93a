from __future__ import annotations

from typing import Any, NoReturn

from django.core.management.base import CommandError
from django_q.management.commands import qmemory


class Command(qmemory.Command):  # type: ignore[misc]  # django-q2 has no types
    """django-q2's monitor of memory, which would always be empty, like `qmonitor`."""

    help = "Not available here: /metrics has the memory of each process."

    def handle(self, *args: object, **options: Any) -> NoReturn:
        raise CommandError(
            "django-q2's monitor needs a cache that all processes share, and there is none here. /metrics has the memory of"
            " each process of a machine (eventservice_process_resident_memory_bytes)."
        )

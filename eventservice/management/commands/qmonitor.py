from __future__ import annotations

from typing import Any, NoReturn

from django.core.management.base import CommandError
from django_q.management.commands import qmonitor


class Command(qmonitor.Command):  # type: ignore[misc]  # django-q2 has no types
    """django-q2's monitor, which would always be empty: it reads a cache that the processes do not share."""

    help = "Not available here: see `manage.py qinfo`, and the page Cluster of the console."

    def handle(self, *args: object, **options: Any) -> NoReturn:
        raise CommandError(
            "django-q2's monitor needs a cache that all processes share, and there is none here. `manage.py qinfo` lists the"
            " processes, `manage.py doctor` says what is wrong, and the page Cluster of the console shows both."
        )

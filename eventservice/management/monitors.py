"""The commands of django-q2 that cannot work here, because they read a cache that the processes do not share."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from django.core.management.base import BaseCommand, CommandError


class MissingMonitor(BaseCommand):
    """A monitor of django-q2, which would always be empty. `instead` says what to use."""

    instead: ClassVar[str]

    def handle(self, *args: object, **options: Any) -> NoReturn:
        raise CommandError(f"Not available here: its cache is not shared by the processes. {self.instead}")

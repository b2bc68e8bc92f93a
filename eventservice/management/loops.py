"""Running a role without django-q: one pass, or a loop that SIGTERM and Ctrl-C end cleanly."""

from __future__ import annotations

import signal
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection

from eventservice.db.dialects.sqlite.base import relax_synchronous
from eventservice.db.errors import tolerate_outage
from eventservice.runtime.cluster import Role

LONGEST_NAP = 1.0


class RoleCommand(BaseCommand):
    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="do what there is to do now, and end")

    def build(self) -> Role:
        raise NotImplementedError

    def once(self, role: Any) -> None:
        raise NotImplementedError

    def handle(self, *args: Any, once: bool, **options: Any) -> None:
        relax_synchronous()
        connection.close()
        role = self.build()
        if once:
            self.once(role)
        else:
            _loop(role)
        role.stop(settings.SHUTDOWN_SECONDS)


def _loop(role: Role) -> None:
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stopping.append(number))
    while not stopping:
        with tolerate_outage():
            role.step(LONGEST_NAP)

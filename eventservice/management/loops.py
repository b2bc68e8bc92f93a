"""Run a role without django-q2: a single pass, or a loop that shuts down gracefully on SIGTERM and Ctrl-C."""

from __future__ import annotations

import signal
from typing import Generic, TypeVar

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection

from eventservice.db.dialects import get_dialect
from eventservice.db.errors import tolerate_outage
from eventservice.runtime.worker import WorkerRole

R = TypeVar("R", bound=WorkerRole)

MAX_IDLE_SECONDS = 1.0


class RoleCommand(BaseCommand, Generic[R]):
    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--once", action="store_true", help="process everything that is due now, then exit"
        )

    def build(self) -> R:
        raise NotImplementedError

    def run_once(self, role: R) -> None:
        raise NotImplementedError

    def handle(self, *args: object, once: bool, **options: object) -> None:
        get_dialect().relax_durability()
        connection.close()
        role = self.build()
        if once:
            self.run_once(role)
        else:
            _run_until_signal(role)
        role.stop(settings.SHUTDOWN_SECONDS)


def _run_until_signal(role: WorkerRole) -> None:
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stopping.append(number))
    while not stopping:
        with tolerate_outage():
            role.step(MAX_IDLE_SECONDS)

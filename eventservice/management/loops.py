"""Run a role without django-q2: a single pass, or a loop that shuts down gracefully on SIGTERM and Ctrl-C."""

from __future__ import annotations

import sys
from typing import Generic, TypeVar

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection

from eventservice.db.dialects import get_dialect
from eventservice.db.errors import tolerate_outage
from eventservice.management.database import require_tables
from eventservice.runtime.cluster_process import EXIT_INCOMPLETE, ClusterProcess
from eventservice.runtime.environment import (
    apply_dispatch_setting,
    refuse_incomplete_move,
    warn_of_default_environment,
)
from eventservice.runtime.worker import WorkerRole, report_stop

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
        require_tables()
        refuse_incomplete_move()
        apply_dispatch_setting()
        get_dialect().relax_durability()
        connection.close()
        role = self.build()
        if once:
            self.run_once(role)
            role.stop(settings.SHUTDOWN_SECONDS)
        else:
            warn_of_default_environment()
            _run_until_signal(role)


def _run_until_signal(role: WorkerRole) -> None:
    """Run the role until SIGTERM or Ctrl-C. Exit with 1 if results are lost because the database is unavailable."""
    process = ClusterProcess()
    with process.stop_on_signals(before_exit=lambda: report_stop(role, "ended_before_it_stopped")):
        while not process.is_stopping():
            with tolerate_outage():
                role.step(MAX_IDLE_SECONDS)
        role.stop(process.grace_left)
    report_stop(role)
    if role.count_unrecorded():
        sys.exit(EXIT_INCOMPLETE)

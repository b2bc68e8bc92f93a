from __future__ import annotations

from typing import Any

from django.core.management import call_command
from django.core.management.base import CommandError
from django_q.management.commands import qcluster

from eventservice.runtime.slots import rename_cluster


class Command(qcluster.Command):  # type: ignore[misc]  # django-q2 has no types
    """django-q2's command, which starts the same as `manage.py cluster` (docs/decisions/0001)."""

    help = "Run the cluster, as `manage.py cluster` does. This is the command by which users of django-q2 know it."

    def handle(self, *args: object, **options: Any) -> None:
        if options["cluster_name"] is not None:
            try:
                rename_cluster(options["cluster_name"])
            except ValueError as error:
                raise CommandError(f"--name: {error}") from None
        if options["run_once"]:
            # django-q2 would start all processes and stop them at once, whether anything is due or not.
            call_command("poll_timers", once=True)
            call_command("dispatch_outbox", once=True)
        else:
            call_command("cluster")

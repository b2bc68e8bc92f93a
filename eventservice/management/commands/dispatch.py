"""Pause and resume dispatch: what the service sends."""

from __future__ import annotations

from argparse import ArgumentTypeError

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from eventservice.db.bounded_count import MAX_COUNTED, format_capped
from eventservice.db.now import db_now
from eventservice.kernel.errors import Conflict
from eventservice.management.database import name_database
from eventservice.operators.audit_log import CommandLine
from eventservice.operators.dispatch import pause, resume
from eventservice.operators.formatting import format_count
from eventservice.operators.health import REMOVE_SETTING, check_dispatch
from outbox.status import get_status
from timers.operator_views import list_nodes
from timers.pause import MAX_REASON_LENGTH, find_pause
from timers.persistence import timer_persistence


def parse_reason(text: str) -> str:
    if len(text) > MAX_REASON_LENGTH:
        raise ArgumentTypeError(f"must have at most {MAX_REASON_LENGTH} characters, not {len(text)}")
    return text


class Command(BaseCommand):
    help = (
        "Pause and resume dispatch. While it is paused, calls are accepted and nothing is sent: no attempt of a call, no"
        " webhook, and nothing to a message broker."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("status", help="show whether dispatch is paused, and what waits")
        pausing = actions.add_parser("pause", help="send nothing from now on")
        pausing.add_argument(
            "--reason",
            type=parse_reason,
            default="",
            help=f"shown to operators (at most {MAX_REASON_LENGTH} characters)",
        )
        actions.add_parser("resume", help="send what is due, and go on")

    def handle(self, *args: object, action: str, **options: object) -> None:
        getattr(self, f"run_{action}")(**options)

    def run_status(self, **options: object) -> None:
        now, nodes = db_now(), list_nodes()
        self.stdout.write(f"database        {name_database()}")
        self.stdout.write(f"dispatch        {check_dispatch(find_pause(), nodes, now).text}")
        backlog, outbox = timer_persistence.measure_backlog(now, MAX_COUNTED), get_status(MAX_COUNTED)
        self.stdout.write(f"calls due       {format_capped(backlog.overdue)}")
        self.stdout.write(f"in flight       {sum(node.in_flight for node in nodes if node.is_alive(now))}")
        self.stdout.write(f"unpublished     {format_count(outbox.unpublished, 'event')}")
        self.stdout.write(f"webhooks        {outbox.pending_deliveries} to deliver")
        for queue in outbox.broker_backlogs:
            self.stdout.write(f"broker          {queue.publisher}: {format_count(queue.count, 'event')}")

    def run_pause(self, *, reason: str, **options: object) -> None:
        if pause(CommandLine(), reason):
            self.stdout.write(
                "Dispatch is paused. Engines obey within about 1 s and dispatchers within about 4 s; what they have"
                " begun ends. Resume with `manage.py dispatch resume`."
            )
        else:
            self.stdout.write(check_dispatch(find_pause(), list_nodes(), db_now()).text)

    def run_resume(self, **options: object) -> None:
        try:
            is_changed = resume(CommandLine())
        except Conflict as refusal:
            raise CommandError(refusal.message) from refusal
        if is_changed:
            self.stdout.write("Dispatch is running again: what is due is sent within seconds.")
        else:
            self.stdout.write("Dispatch was not paused.")
        if settings.DISPATCH == "paused":
            self.stdout.write(REMOVE_SETTING)

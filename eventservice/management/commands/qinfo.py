from __future__ import annotations

from collections.abc import Iterable

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django_q.brokers import get_broker

from eventservice.db.now import db_now
from eventservice.management.database import name_database
from eventservice.management.terminal import Terminal
from timers.models import Node
from timers.operator_views import list_nodes


class Command(BaseCommand):
    """django-q2's command, which reads the database. Its own reads a cache that the processes do not share."""

    help = "Show the processes of all clusters, their roles, and the tasks in the queue of this cluster."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--config", action="store_true", help="print Q_CLUSTER of the settings")
        parser.add_argument("--ids", action="store_true", help="print the ids of the live nodes")

    def handle(self, *args: object, config: bool, ids: bool, **options: object) -> None:
        if config:
            for name, value in sorted(settings.Q_CLUSTER.items()):
                self.stdout.write(f"{name}: {value}")
            return
        now = db_now()
        live = [node for node in list_nodes() if node.is_alive(now)]
        if ids:
            for node in live:
                self.stdout.write(str(node.owner_id))
            return
        self._print_nodes(live)
        broker = get_broker()
        waiting, taken = broker.queue_size(), broker.lock_size()
        self.stdout.write(f"Queue {broker.list_key}: {waiting} waiting, {taken} taken")

    def _print_nodes(self, nodes: Iterable[Node]) -> None:
        Terminal(self, as_json=False).table(
            ("NODE", "ROLE", "HOST", "PROCESS", "VERSION", "IN FLIGHT", "STARTED"),
            [
                (
                    n.owner_id,
                    n.role,
                    n.hostname,
                    n.process_id,
                    n.version,
                    n.in_flight,
                    f"{n.started_at:%Y-%m-%d %H:%M:%S}",
                )
                for n in nodes
            ],
            empty=f"No engine or dispatcher is running on {name_database()}. Start both with `manage.py qcluster`.",
        )

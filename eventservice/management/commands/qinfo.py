from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django_q.brokers import get_broker

from eventservice.db.now import db_now
from eventservice.kernel.version import get_version
from eventservice.management.database import name_database
from eventservice.management.terminal import Terminal
from eventservice.operators.formatting import format_distance
from eventservice.operators.health import (
    FORGOTTEN_AFTER,
    ClusterRole,
    ClusterState,
    blame_database,
    check_cluster,
    describe_state,
    read_cluster,
    select_problems,
)
from eventservice.runtime.models import Slot
from eventservice.runtime.slots import cluster_name


class Command(BaseCommand):
    """django-q2's command, which reads the database. Its own reads a cache that the processes do not share."""

    help = (
        "Show the processes of all clusters, who plays each role and until when, who stands by, the queue of each cluster, "
        "and what is wrong with them."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--config", action="store_true", help="print Q_CLUSTER of the settings")
        parser.add_argument("--ids", action="store_true", help="print the ids of the live nodes")

    def handle(self, *args: object, config: bool, ids: bool, **options: object) -> None:
        if config:
            for name, value in sorted(settings.Q_CLUSTER.items()):
                self.stdout.write(f"{name}: {value}")
            return
        cluster = read_cluster(db_now(), Slot.objects.order_by("name"))
        if ids:
            for node in cluster.nodes:
                if node.is_alive(cluster.now):
                    self.stdout.write(str(node.owner_id))
            return
        self._print_nodes(cluster)
        self._print_roles(cluster)
        self._print_queues(cluster)
        self._print_stopped_clusters(cluster)
        for problem in select_problems(blame_database(check_cluster(cluster))):
            self.stdout.write(f"\n{problem.text}\n  {problem.remedy}")

    def _print_nodes(self, cluster: ClusterState) -> None:
        are_alike = {node.version for node in cluster.nodes} <= {get_version()}
        publish_alike = len(cluster.group_dispatchers()) <= 1
        rows = [
            {
                "STATE": describe_state(node, cluster.now),
                "ROLE": node.role,
                "CLUSTER": node.cluster,
                "HOST": node.hostname,
                "PROCESS": str(node.process_id),
                "IN FLIGHT": str(node.in_flight or ""),
                "STARTED": _format_time(cluster, node.started_at),
                "VERSION": "" if are_alike else node.version or "unknown",
                "PUBLISHERS": "" if publish_alike else node.publishers or "",
            }
            for node in cluster.nodes
        ]
        self._print_table(rows, cut=("CLUSTER", "HOST"), empty=f"No process is running on {name_database()}.")

    def _print_roles(self, cluster: ClusterState) -> None:
        rows = [
            {
                "CLUSTER ROLE": role.chain.name,
                "HELD BY": _format_holder(role),
                "LEASE ENDS": _format_time(cluster, role.chain.lease_until),
                "LAST SLICE": _format_time(cluster, role.chain.taken_at),
                "STANDBYS": ", ".join(f"{node.hostname} {node.process_id}" for node in role.standbys),
            }
            for role in cluster.roles
        ]
        if rows:
            self.stdout.write("")
            self._print_table(rows, cut=("HELD BY",), empty="")

    def _print_table(self, rows: Sequence[dict[str, str]], *, cut: Sequence[str], empty: str) -> None:
        """Print a table without the columns that are empty in every row."""
        columns = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
        Terminal(self, as_json=False).table(
            columns,
            [[row[name] for name in columns] for row in rows],
            empty=empty,
            cut=[name for name in cut if name in columns],
        )

    def _print_queues(self, cluster: ClusterState) -> None:
        self.stdout.write("")
        for name in sorted({role.cluster for role in cluster.roles} or {cluster_name()}):
            broker = get_broker(name)
            waiting, taken = broker.queue_size(), broker.lock_size()
            self.stdout.write(f"Queue {name}: {waiting} waiting, {taken} taken by workers")

    def _print_stopped_clusters(self, cluster: ClusterState) -> None:
        """Say that what is left of clusters that do not run can be ignored, while others do their work."""
        running = {role.cluster for role in cluster.roles if role.is_running}
        stopped = sorted({role.cluster for role in cluster.roles} - running)
        if running and stopped:
            self.stdout.write(
                f"\nNot running: {', '.join(stopped)}. If a cluster was stopped or renamed for good, its roles and the tasks in its"
                f" queue are harmless leftovers, which are no longer shown {FORGOTTEN_AFTER.days} days after its last slice."
            )


def _format_holder(role: ClusterRole) -> str:
    if role.holder is not None:
        return f"{role.holder.hostname} {role.holder.process_id}"
    return "a process that starts or stops" if role.is_held else "nobody"


def _format_time(cluster: ClusterState, moment: datetime | None) -> str:
    return format_distance((moment - cluster.now).total_seconds()) if moment else ""

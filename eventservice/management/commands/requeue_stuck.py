from collections.abc import Collection
from datetime import timedelta

from django.core.management.base import BaseCommand

from eventservice.db.now import db_now
from eventservice.operators.audit_log import CommandLine, record_action
from eventservice.operators.formatting import format_count, format_duration, format_seconds
from eventservice.operators.health import describe_node
from orchestration.engine.recovery import recover
from timers.membership import NODE_LEASE, list_live_node_ids, list_silent_nodes
from timers.models import Node, NodeRole


class Command(BaseCommand):
    help = (
        "Take over from dead nodes, as a running engine does by itself: free their shards, and resolve Running calls whose "
        "attempt was lost. Those that are delivered at least once are attempted again, those at most once fail as "
        "Interrupted. Nothing is taken from a node that sends heartbeats."
    )

    def handle(self, *args: object, **options: object) -> None:
        record_action(CommandLine(), "requeue-stuck", subject="calls")
        silent = list_silent_nodes()
        self._announce(silent)
        recovery = recover(silent)
        for node in recovery.reaped:
            self.stdout.write(f"Declared dead: {describe_node(node)}. What it held is free.")
        for node in recovery.locked:
            self.stdout.write(
                f"Not declared dead: {describe_node(node)}. It is frozen in a transaction. End that process, and run this again."
            )
        alive = len(silent) - len(recovery.reaped) - len(recovery.locked)
        if alive:
            self.stdout.write(
                f"{format_count(alive, 'node')} sent a heartbeat, or an engine took over from it."
            )
        self.stdout.write(f"Resolved {format_count(recovery.resolved, 'call')}.")
        if recovery.overdue:
            self.stdout.write(
                f"{format_count(recovery.overdue, 'call')} past the deadline left to the nodes that have them in progress."
            )
        if not list_live_node_ids(NodeRole.ENGINE):
            self.stdout.write("No engine is running, so no call is sent. Start one with `manage.py cluster`.")

    def _announce(self, silent: Collection[Node]) -> None:
        now = db_now()
        for node in silent:
            ended = format_duration(max(timedelta(), now - node.lease_until))
            self.stdout.write(f"No heartbeat from {describe_node(node)}: its lease ended {ended} ago.")
        if silent:
            self.stdout.write(f"Waiting {format_seconds(NODE_LEASE.total_seconds())} for one.")
            self.stdout.flush()

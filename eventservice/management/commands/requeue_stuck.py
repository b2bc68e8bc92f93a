from django.core.management.base import BaseCommand

from eventservice.operators.audit_log import CommandLine, record_action
from eventservice.operators.formatting import format_count
from orchestration.engine.engine import resolve_stuck_calls


class Command(BaseCommand):
    help = "Resolve Running calls whose attempt was lost. The watchdog of a running engine does this every few seconds."

    def handle(self, *args: object, **options: object) -> None:
        record_action(CommandLine(), "requeue-stuck", subject="calls")
        self.stdout.write(f"Resolved {format_count(resolve_stuck_calls(), 'call')}.")

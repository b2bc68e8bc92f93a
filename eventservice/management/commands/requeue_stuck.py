from django.core.management.base import BaseCommand

from orchestration.engine.engine import resolve_stuck_calls


class Command(BaseCommand):
    help = "Resolve Running calls whose attempt was lost. The watchdog of a running engine does this every few seconds."

    def handle(self, *args: object, **options: object) -> None:
        self.stdout.write(f"Resolved {resolve_stuck_calls()} calls.")

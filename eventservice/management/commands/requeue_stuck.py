from typing import Any

from django.core.management.base import BaseCommand

from orchestration.engine.engine import resolve_stuck


class Command(BaseCommand):
    help = "Resolve Running calls whose attempt cannot end any more, as the engine's watchdog does every few seconds."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"{resolve_stuck()} calls resolved.")

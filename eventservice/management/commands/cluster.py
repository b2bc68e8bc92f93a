from typing import Any

from django.core.management.base import BaseCommand

from eventservice.db.dialects.sqlite.base import relax_synchronous
from eventservice.runtime.cluster import run_cluster


class Command(BaseCommand):
    help = (
        "Run the django-q2 cluster whose workers are the engine and the dispatcher. SIGTERM stops it cleanly."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        relax_synchronous()
        run_cluster()

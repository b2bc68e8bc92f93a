from typing import Any

from django.core.management.base import BaseCommand

from eventservice.db.dialects.sqlite.base import relax_synchronous
from eventservice.runtime.cluster import run_cluster


class Command(BaseCommand):
    help = "Run the django-q2 cluster that executes the engine and the dispatcher. It shuts down gracefully on SIGTERM."

    def handle(self, *args: Any, **options: Any) -> None:
        relax_synchronous()
        run_cluster()

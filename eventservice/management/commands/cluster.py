import sys

from django.core.management.base import BaseCommand

from eventservice.db.dialects import get_dialect
from eventservice.management.database import require_tables
from eventservice.runtime.cluster import run_cluster
from eventservice.runtime.environment import refuse_incomplete_move


class Command(BaseCommand):
    help = "Run the django-q2 cluster that executes the engine and the dispatcher. It shuts down gracefully on SIGTERM."

    def handle(self, *args: object, **options: object) -> None:
        require_tables()
        refuse_incomplete_move()
        get_dialect().relax_durability()
        sys.exit(run_cluster())

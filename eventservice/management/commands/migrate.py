from typing import Any

from django.conf import settings
from django.core.management.commands import migrate
from django.db import connections

from eventservice.db.configuration import without_statement_limit
from eventservice.db.dialects import get_dialect


class Command(migrate.Command):
    """Django's command, which creates a database that is a file, and whose statements may take longer than those of the
    running service."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        # Here, because the system checks, which come before `handle`, connect to it.
        database = connections[options["database"]]
        get_dialect(database).create_database(database)
        return super().execute(*args, **options)

    def handle(self, *args: Any, **options: Any) -> None:
        with without_statement_limit(connections[options["database"]], settings.DATABASE_WAITS):
            super().handle(*args, **options)

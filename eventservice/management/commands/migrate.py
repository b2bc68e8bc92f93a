from typing import Any

from django.conf import settings
from django.core.management.commands import migrate
from django.db import connections

from eventservice.db.configuration import without_statement_limit


class Command(migrate.Command):
    """Django's command, whose statements may take longer than those of the running service."""

    def handle(self, *args: Any, **options: Any) -> None:
        with without_statement_limit(connections[options["database"]], settings.DATABASE_WAITS):
            super().handle(*args, **options)

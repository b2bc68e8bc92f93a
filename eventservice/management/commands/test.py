from __future__ import annotations

import sys

from django.core.management.base import BaseCommand, CommandError


class Command(BaseCommand):
    """Replaces Django's command, which finds no tests here and reports success."""

    help = "Say how to run the tests: they need pytest."
    requires_system_checks = []

    def run_from_argv(self, argv: list[str]) -> None:
        # The arguments are those of Django's test runner, whatever they may be.
        if {"-h", "--help"} & set(argv):
            self.print_help(*argv[:2])
            return
        try:
            self.handle()
        except CommandError as error:
            self.stderr.write(str(error))
            sys.exit(error.returncode)

    def handle(self, *args: object, **options: object) -> None:
        raise CommandError(
            "The tests run with pytest, not with Django's test runner:\n\n"
            "    make test                                        all of them, on every database that is running\n"
            "    .venv/bin/python -m pytest tests/orchestration   some of them, on SQLite (after `make install-dev`)\n\n"
            "CONTRIBUTING.md explains the rest."
        )

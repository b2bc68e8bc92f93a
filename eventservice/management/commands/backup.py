"""Copy the database while the service runs."""

from __future__ import annotations

from pathlib import Path

from django.core.management.base import BaseCommand, CommandError, CommandParser

from eventservice.db.dialects.backup import BackupError
from eventservice.management.database import get_file_backups, name_database, require_tables
from eventservice.operators.audit_log import CommandLine, record_action
from eventservice.operators.formatting import format_size


class Command(BaseCommand):
    help = (
        "Copy the SQLite database to a file, while the service runs. The copy is verified. A database server has tools of its"
        " own for this (docs/operations.md)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="the file to write, which must not exist")

    def handle(self, *args: object, file: Path, **options: object) -> None:
        backups = get_file_backups("backup")
        require_tables()
        record_action(CommandLine(), "backup", subject=file.absolute())
        try:
            backups.back_up(file)
        except BackupError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(
            f"Copied {name_database()} to {file} ({format_size(file.stat().st_size)}). SQLite found no damage in the copy."
        )
        self.stdout.write(
            "Keep it with a copy of .env: without its keys, the secrets in the database cannot be decrypted."
        )

from typing import Any

from django.contrib.auth.management.commands import changepassword

from eventservice.management.user_changes import record_saved_users


class Command(changepassword.Command):
    """Django's command, with an entry in the audit log."""

    def handle(self, *args: Any, **options: Any) -> str | None:
        with record_saved_users("user-password"):
            return super().handle(*args, **options)

from typing import Any

from django.contrib.auth.management.commands import createsuperuser

from eventservice.management.user_changes import record_saved_users


class Command(createsuperuser.Command):
    """Django's command, with an entry in the audit log."""

    def handle(self, *args: Any, **options: Any) -> None:
        with record_saved_users("user-create"):
            super().handle(*args, **options)

"""The audit of Django's commands for users."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models.signals import post_save

from eventservice.operators.audit_log import CommandLine, record_action


@contextmanager
def record_saved_users(action: str) -> Iterator[None]:
    """Record each user that a command saves, as the pages of users do.

    The commands ask for passwords between two statements, so one transaction around them would be idle for too long.
    """

    def record(instance: Any, **signal: object) -> None:
        record_action(CommandLine(), action, subject=f"user {instance.get_username()}")

    user_model = get_user_model()
    post_save.connect(record, sender=user_model, weak=False)
    try:
        yield
    finally:
        post_save.disconnect(record, sender=user_model)

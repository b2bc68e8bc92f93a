"""The audit log: an operator's command and its entry are written in one transaction."""

from __future__ import annotations

import getpass
import os
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.db import transaction

from eventservice.db.errors import retry_on_deadlock
from eventservice.db.now import db_now
from eventservice.operators.models import OperatorAction

R = TypeVar("R")


class CommandLine:
    """The user of a management command, as the audit log names them: by the account of the operating system."""

    def get_username(self) -> str:
        return f"manage.py ({_find_account()})"[:150]


def _find_account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no account
        return str(os.getuid())


@retry_on_deadlock
def run_audited(
    user: Any,
    action: str,
    command: Callable[[], R],
    *,
    tenant_id: uuid.UUID | None = None,
    subject: object = "",
    changed: Callable[[R], bool] = lambda result: True,
    **detail: Any,
) -> R:
    """Run a command and record it in the audit log.

    A command that raises changes and records nothing. `changed` decides by the result whether there is anything to
    record: nothing is recorded for what was so already.
    """
    with transaction.atomic():
        result = command()
        if changed(result):
            record_action(user, action, tenant_id=tenant_id, subject=subject, **detail)
    return result


def describe_changes(before: object, changes: Mapping[str, object]) -> dict[str, Any]:
    """Return the attributes that change, each with its old and its new value ("1000 → 4"), for the detail of an entry."""
    return {
        name: f"{_format_value(getattr(before, name))} → {_format_value(value)}"
        for name, value in changes.items()
    }


def _format_value(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return "none" if value in (None, "") else str(value)


def record_action(
    user: Any, action: str, *, tenant_id: uuid.UUID | None = None, subject: object = "", **detail: Any
) -> None:
    OperatorAction.objects.create(
        at=db_now(),
        user=user.get_username(),
        action=action,
        tenant_id=tenant_id,
        subject=str(subject)[:255],
        detail=detail,
    )


def list_actions_on(subject: object, limit: int = 20) -> list[OperatorAction]:
    """Return the entries on a subject, newest first."""
    rows = OperatorAction.across_tenants.filter(subject=str(subject)[:255])
    return list(rows.order_by("-id")[:limit])

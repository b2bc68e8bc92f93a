"""A command that the database rolled back to resolve a deadlock is run again."""

from __future__ import annotations

import pytest
from django.db import OperationalError, transaction

from eventservice.db import errors
from eventservice.db.errors import MAX_ATTEMPTS, retry_on_deadlock

pytestmark = pytest.mark.django_db(transaction=True)

DEADLOCK = OperationalError("deadlock")


class Command:
    def __init__(self, *, fails: int, error: Exception) -> None:
        self.runs = 0
        self.fails = fails
        self.error = error

    def __call__(self) -> str:
        self.runs += 1
        if self.runs <= self.fails:
            raise self.error
        return "done"


@pytest.fixture(autouse=True)
def deadlocks_are_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recognize one error as a deadlock: SQLite has none (tests/db/test_error_codes.py tests the others)."""
    monkeypatch.setattr(errors, "is_deadlock", lambda error: error is DEADLOCK)


def test_a_command_is_run_again_until_it_succeeds() -> None:
    command = Command(fails=MAX_ATTEMPTS - 1, error=DEADLOCK)
    assert retry_on_deadlock(command)() == "done"
    assert command.runs == MAX_ATTEMPTS


def test_a_command_is_not_run_for_ever() -> None:
    with pytest.raises(OperationalError):
        retry_on_deadlock(Command(fails=MAX_ATTEMPTS, error=DEADLOCK))()


def test_another_error_is_raised_at_once() -> None:
    command = Command(fails=1, error=OperationalError(2006, "Server has gone away"))
    with pytest.raises(OperationalError):
        retry_on_deadlock(command)()
    assert command.runs == 1


def test_inside_a_transaction_the_caller_has_to_begin_again() -> None:
    command = Command(fails=1, error=DEADLOCK)
    with pytest.raises(OperationalError), transaction.atomic():
        retry_on_deadlock(command)()
    assert command.runs == 1

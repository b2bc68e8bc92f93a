"""A command that the database gave up for another's sake is made again."""

from __future__ import annotations

import pytest
from django.db import OperationalError, transaction

from eventservice.db.errors import MAX_ATTEMPTS, retry_on_deadlock


class Command:
    def __init__(self, *, fails: int, error: Exception) -> None:
        self.made = 0
        self.fails = fails
        self.error = error

    def __call__(self) -> str:
        self.made += 1
        if self.made <= self.fails:
            raise self.error
        return "done"


DEADLOCK = OperationalError(1213, "Deadlock found when trying to get lock; try restarting transaction")


@pytest.mark.django_db(transaction=True)
def test_it_goes_again_until_it_is_through() -> None:
    command = Command(fails=MAX_ATTEMPTS - 1, error=DEADLOCK)
    assert retry_on_deadlock(command)() == "done"
    assert command.made == MAX_ATTEMPTS


@pytest.mark.django_db(transaction=True)
def test_it_does_not_go_on_for_ever() -> None:
    with pytest.raises(OperationalError):
        retry_on_deadlock(Command(fails=MAX_ATTEMPTS, error=DEADLOCK))()


@pytest.mark.django_db(transaction=True)
def test_another_trouble_is_told_at_once() -> None:
    command = Command(fails=1, error=OperationalError(2006, "Server has gone away"))
    with pytest.raises(OperationalError):
        retry_on_deadlock(command)()
    assert command.made == 1


@pytest.mark.django_db(transaction=True)
def test_inside_a_transaction_it_is_the_callers_to_begin_again() -> None:
    command = Command(fails=1, error=DEADLOCK)
    with pytest.raises(OperationalError), transaction.atomic():
        retry_on_deadlock(command)()
    assert command.made == 1

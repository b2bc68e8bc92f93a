"""Commands read a length of time as the API and the console do, and refuse one that no calendar has."""

from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from eventservice.management.terminal import length_of_time

DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("text", "length"),
    [("90s", timedelta(seconds=90)), ("1h30m", timedelta(minutes=90)), ("30d", 30 * DAY), ("P2W", 14 * DAY)],
)
def test_it_is_what_the_api_takes(text: str, length: timedelta) -> None:
    assert length_of_time(text) == length


@pytest.mark.parametrize("text", ["", "30", "soon", "-1d", "999999d", "99999999999d", "999999999d"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        length_of_time(text)


COMMANDS = [("prune", "--older-than"), ("outbox", "prune", "--older-than"), ("outbox", "replay", "--since")]


@pytest.mark.django_db
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_all_commands_read_it_alike(command: tuple[str, ...]) -> None:
    out = StringIO()
    call_command(*command, "1h30m", stdout=out)
    assert out.getvalue().startswith("0 ")
    for text in ("99999999999d", "999999d"):
        with pytest.raises(CommandError, match=text):
            call_command(*command, text, stdout=out)


@pytest.mark.django_db
def test_figures_are_counted_for_a_length_of_time() -> None:
    out = StringIO()
    call_command("roll_up", "--for", "1m30s", stdout=out)
    assert out.getvalue().startswith("All")
    with pytest.raises(CommandError, match="--for"):
        call_command("roll_up", "--for", "30")


@pytest.mark.django_db
def test_a_moment_before_all_time_is_refused() -> None:
    with pytest.raises(CommandError, match="0001-01-01"):
        call_command("outbox", "replay", "--since", "0001-01-01T00:00:00+14:00")

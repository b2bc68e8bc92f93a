"""Commands parse durations like the API and the console, and refuse those beyond any calendar."""

from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from eventservice.management.terminal import parse_duration_argument

DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("text", "length"),
    [("90s", timedelta(seconds=90)), ("1h30m", timedelta(minutes=90)), ("30d", 30 * DAY), ("P2W", 14 * DAY)],
)
def test_durations_are_written_as_in_the_api(text: str, length: timedelta) -> None:
    assert parse_duration_argument(text) == length


@pytest.mark.parametrize("text", ["", "30", "soon", "-1d", "999999d", "99999999999d", "999999999d"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        parse_duration_argument(text)


COMMANDS = [("prune", "--older-than"), ("outbox", "prune", "--older-than"), ("outbox", "replay", "--since")]


@pytest.mark.django_db
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_all_commands_accept_the_same_notation(command: tuple[str, ...]) -> None:
    out = StringIO()
    call_command(*command, "1h30m", stdout=out)
    assert "0 " in out.getvalue()
    for text in ("99999999999d", "999999d"):
        with pytest.raises(CommandError, match=text):
            call_command(*command, text, stdout=out)


@pytest.mark.django_db
def test_statistics_are_updated_for_a_duration() -> None:
    out = StringIO()
    call_command("roll_up", "--for", "1m30s", stdout=out)
    assert out.getvalue().startswith("The statistics are up to date")
    with pytest.raises(CommandError, match="--for"):
        call_command("roll_up", "--for", "30")


@pytest.mark.django_db
def test_a_timestamp_before_the_year_1_is_refused() -> None:
    with pytest.raises(CommandError, match="0001-01-01"):
        call_command("outbox", "replay", "--since", "0001-01-01T00:00:00+14:00")


@pytest.mark.django_db
def test_prune_counts_events_and_deliveries_apart() -> None:
    out = StringIO()
    call_command("prune", "--older-than", "30d", stdout=out)
    assert out.getvalue().startswith("Deleted 0 calls, 0 events and 0 webhook deliveries in ")


@pytest.mark.django_db
@pytest.mark.parametrize("command", [("prune",), ("outbox", "prune")])
@pytest.mark.parametrize("age", ["0d", "30m"])
def test_prune_deletes_what_has_just_ended_only_if_that_is_confirmed(
    command: tuple[str, ...], age: str
) -> None:
    with pytest.raises(CommandError, match=r"--older-than is less than 1h: .* Add --yes"):
        call_command(*command, "--older-than", age)
    out = StringIO()
    call_command(*command, "--older-than", age, "--yes", stdout=out)
    assert out.getvalue().startswith("Deleted 0 ")


def test_prune_requires_an_age() -> None:
    with pytest.raises(CommandError, match="--older-than"):
        call_command("prune")

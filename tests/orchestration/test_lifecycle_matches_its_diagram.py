"""docs/lifecycle.md, TRANSITIONS and the CHECK constraint agree, and the lifecycle does what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.db import IntegrityError, transaction

from orchestration import lifecycle
from orchestration.models import ServiceCall
from orchestration.states import TERMINAL, TRANSITIONS, Status
from tests.factories import ServiceCallFactory
from tests.orchestration.support import ManualEngine, get_status, list_event_types
from tests.orchestration.transitions import MAKE_CALL_IN, MOVES

pytestmark = pytest.mark.django_db

PAGE = (Path(__file__).parents[2] / "docs" / "lifecycle.md").read_text()


class Line(NamedTuple):
    origin: str
    to: str
    who: str
    function: str
    events: list[str]


def parse_diagram() -> set[tuple[str, str]]:
    return set(re.findall(r"^    (\S+) --> (\S+)", PAGE, re.MULTILINE))


def parse_table() -> list[Line]:
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in row] for row in rows]
    return [
        Line(origin, to, who, function.strip("`"), re.findall(r"`(\w+)`", events))
        for origin, to, who, function, events in cells
    ]


def list_transitions() -> set[tuple[str, str]]:
    return {(origin.value, to.value) for origin, following in TRANSITIONS.items() for to in following}


def test_the_diagram_shows_the_transitions() -> None:
    ends = {(status.value, "[*]") for status in TERMINAL}
    assert parse_diagram() == list_transitions() | ends | {("[*]", "Scheduled")}


def test_the_table_shows_the_transitions() -> None:
    within = {(line.origin, line.to) for line in parse_table() if line.origin not in ("–", line.to)}
    assert within == list_transitions()


def is_stored(status: str) -> bool:
    try:
        with transaction.atomic():
            ServiceCallFactory(status=status)
    except IntegrityError:
        return False
    return True


def test_the_database_accepts_these_statuses_and_no_other() -> None:
    others = {"", "Bogus", "Paused", "scheduled", "RUNNING", "Reached"}
    assert {status for status in {*Status.values, *others} if is_stored(status)} == set(Status.values)
    assert {origin.value for origin in TRANSITIONS} == set(Status.values)
    assert ServiceCall.across_tenants.count() == len(Status)


def test_every_line_of_the_table_has_a_move() -> None:
    assert sorted(
        (line.origin, line.to, line.function) for line in parse_table() if line.origin != "–"
    ) == sorted((move.origin.value, move.to.value, move.function) for move in MOVES)
    assert all(hasattr(lifecycle, line.function) for line in parse_table())


@pytest.mark.parametrize("move", MOVES, ids=str)
def test_each_move_has_the_status_and_the_events_of_the_table(
    move: Any, manual_engine: ManualEngine, tenant: Any
) -> None:
    begun = MAKE_CALL_IN[move.origin](manual_engine, tenant, **move.terms)
    before = list_event_types(tenant, begun.service_call_id)
    (line,) = [
        x for x in parse_table() if (x.origin, x.to, x.function) == (move.origin, move.to, move.function)
    ]

    move.make(manual_engine, begun)

    assert get_status(tenant, begun.service_call_id) == line.to
    assert list_event_types(tenant, begun.service_call_id) == before + line.events

"""Every status × everything that can be asked of a call: what is not allowed changes no row and tells nobody."""

from __future__ import annotations

from typing import Any

import pytest

from orchestration.states import TERMINAL, Status
from tests.orchestration.moves import BEGINNINGS, FUNCTIONS, attempt_to
from tests.orchestration.support import Hand, call_of, everything, status_of

pytestmark = pytest.mark.django_db

# What each function does to a call in each status; where it is not named: nothing.
LEGAL = {
    ("start", Status.SCHEDULED): Status.RUNNING,
    ("cancel", Status.SCHEDULED): Status.CANCELED,
    ("reschedule", Status.SCHEDULED): Status.SCHEDULED,
    ("run_now", Status.SCHEDULED): Status.SCHEDULED,
    ("succeed", Status.RUNNING): Status.SUCCEEDED,
    ("fail", Status.RUNNING): Status.FAILED,
    ("fail_for_now", Status.RUNNING): Status.FAILED,  # the default policy has one attempt
    ("interrupt", Status.RUNNING): Status.SCHEDULED,
    ("cancel", Status.RUNNING): Status.RUNNING,
}


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_legal_move_moves_and_an_illegal_one_changes_nothing(
    function: Any, status: Status, hand: Hand, tenant: Any
) -> None:
    call = BEGINNINGS[status](hand, tenant)
    before = everything()

    done = attempt_to(function, hand, call)

    if (function.__name__, status) in LEGAL:
        assert done
        assert status_of(tenant, call.service_call_id) == LEGAL[function.__name__, status]
        assert everything() != before
    else:
        assert everything() == before


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_what_has_ended_stays_as_it_is_whatever_is_tried(status: Status, hand: Hand, tenant: Any) -> None:
    call = BEGINNINGS[status](hand, tenant)
    before = everything()
    for function in (*FUNCTIONS, *reversed(FUNCTIONS)):
        attempt_to(function, hand, call)
    assert everything() == before


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_nothing_moves_a_call_of_another_tenant_with_the_same_id(
    function: Any, status: Status, hand: Hand, tenant: Any, intruder: Any
) -> None:
    theirs = BEGINNINGS[status](hand, intruder)
    ours = BEGINNINGS[Status.SCHEDULED](hand, tenant, service_call_id=theirs.service_call_id)
    before = call_of(intruder, theirs.service_call_id)

    attempt_to(function, hand, ours)

    assert call_of(intruder, theirs.service_call_id).__dict__ | {"_state": 0} == before.__dict__ | {"_state": 0}

"""Every status × everything that can be asked of a call: what is not allowed changes no row and tells nobody."""

from __future__ import annotations

from typing import Any

import pytest

from orchestration.models import ServiceCall
from orchestration.states import TERMINAL, Status
from tests.orchestration.support import Hand, call_of, everything
from tests.orchestration.transitions import BEGINNINGS, DURABLE, MOVING, OTHERS, attempt_to

pytestmark = pytest.mark.django_db

# What becomes of a call in each status (None: it is gone). Where nothing is named, nothing changes.
LEGAL: dict[tuple[str, Status], Status | None] = {
    ("start", Status.SCHEDULED): Status.RUNNING,
    ("cancel", Status.SCHEDULED): Status.CANCELED,
    ("reschedule", Status.SCHEDULED): Status.SCHEDULED,
    ("run_now", Status.SCHEDULED): Status.SCHEDULED,
    ("edit", Status.SCHEDULED): Status.SCHEDULED,
    ("set_timer", Status.SCHEDULED): Status.SCHEDULED,
    ("delete", Status.SCHEDULED): None,
    ("succeed", Status.RUNNING): Status.SUCCEEDED,
    ("fail", Status.RUNNING): Status.FAILED,
    ("fail_for_now", Status.RUNNING): Status.FAILED,  # the default policy has one attempt
    ("interrupt", Status.RUNNING): Status.SCHEDULED,
    ("cancel", Status.RUNNING): Status.RUNNING,
    **{("delete", status): None for status in TERMINAL},
    # Beside the call that has ended there is a new one.
    **{("replay", status): status for status in TERMINAL},
    **{("set_timer", status): status for status in TERMINAL},
}


def name_of(function: Any) -> str:
    return str(function.__name__)


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("function", [*MOVING, *OTHERS], ids=name_of)
def test_a_legal_move_moves_and_an_illegal_one_changes_nothing(
    function: Any, status: Status, hand: Hand, tenant: Any
) -> None:
    call = BEGINNINGS[status](hand, tenant, **DURABLE)
    before = everything()

    done = attempt_to(function, hand, call)

    if (name_of(function), status) in LEGAL:
        assert done
        left = ServiceCall.objects.for_tenant(tenant.tenant_id).filter(service_call_id=call.service_call_id)
        assert left.values_list("status", flat=True).first() == LEGAL[name_of(function), status]
        assert everything() != before
    else:
        assert everything() == before


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_what_has_ended_stays_as_it_is_whatever_is_tried(status: Status, hand: Hand, tenant: Any) -> None:
    call = BEGINNINGS[status](hand, tenant)
    before = everything()
    for function in (*MOVING, *reversed(MOVING)):
        attempt_to(function, hand, call)
    assert everything() == before


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("function", [*MOVING, *OTHERS], ids=name_of)
def test_nothing_moves_a_call_of_another_tenant_with_the_same_ids(
    function: Any, status: Status, hand: Hand, tenant: Any, intruder: Any
) -> None:
    theirs = BEGINNINGS[status](hand, intruder, **DURABLE)
    ours = BEGINNINGS[Status.SCHEDULED](hand, tenant, service_call_id=theirs.service_call_id, **DURABLE)
    before = vars(call_of(intruder, theirs.service_call_id)) | {"_state": None}

    attempt_to(function, hand, ours)

    assert vars(call_of(intruder, theirs.service_call_id)) | {"_state": None} == before

"""Every status × every function: what is not allowed changes no row and appends no event."""

from __future__ import annotations

from typing import Any

import pytest

from orchestration.models import ServiceCall
from orchestration.states import TERMINAL, Status
from tests.orchestration.support import ManualEngine, get_call, read_all_rows
from tests.orchestration.transitions import DURABLE, MAKE_CALL_IN, MOVING, OTHERS, is_accepted

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


def get_name(function: Any) -> str:
    return str(function.__name__)


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("function", [*MOVING, *OTHERS], ids=get_name)
def test_an_illegal_move_changes_nothing(
    function: Any, status: Status, manual_engine: ManualEngine, tenant: Any
) -> None:
    call = MAKE_CALL_IN[status](manual_engine, tenant, **DURABLE)
    before = read_all_rows()

    done = is_accepted(function, manual_engine, call)

    if (get_name(function), status) in LEGAL:
        assert done
        left = ServiceCall.objects.for_tenant(tenant.tenant_id).filter(service_call_id=call.service_call_id)
        assert left.values_list("status", flat=True).first() == LEGAL[get_name(function), status]
        assert read_all_rows() != before
    else:
        assert read_all_rows() == before


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_a_call_that_has_ended_never_changes(
    status: Status, manual_engine: ManualEngine, tenant: Any
) -> None:
    call = MAKE_CALL_IN[status](manual_engine, tenant)
    before = read_all_rows()
    for function in (*MOVING, *reversed(MOVING)):
        is_accepted(function, manual_engine, call)
    assert read_all_rows() == before


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("function", [*MOVING, *OTHERS], ids=get_name)
def test_nothing_moves_a_call_of_another_tenant_with_the_same_ids(
    function: Any, status: Status, manual_engine: ManualEngine, tenant: Any, intruder: Any
) -> None:
    theirs = MAKE_CALL_IN[status](manual_engine, intruder, **DURABLE)
    ours = MAKE_CALL_IN[Status.SCHEDULED](
        manual_engine, tenant, service_call_id=theirs.service_call_id, **DURABLE
    )
    before = vars(get_call(intruder, theirs.service_call_id)) | {"_state": None}

    is_accepted(function, manual_engine, ours)

    assert vars(get_call(intruder, theirs.service_call_id)) | {"_state": None} == before

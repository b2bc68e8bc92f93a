"""A call may have any number of attempts; reads return a limited number of them."""

from __future__ import annotations

from typing import Any

import pytest

from execution.attempt_log import FIRST_LISTED, LAST_LISTED, list_attempts_after, list_attempts_without_bodies
from tests.factories import HttpExecutionFactory, ServiceCallFactory

pytestmark = pytest.mark.django_db

MAX_LISTED = FIRST_LISTED + LAST_LISTED


def create_call(tenant: Any, attempts: int) -> tuple[Any, Any]:
    call = ServiceCallFactory(tenant_id=tenant.tenant_id, attempt=attempts)
    key = {"tenant_id": call.tenant_id, "service_call_id": call.service_call_id}
    for number in range(attempts, 0, -1):
        HttpExecutionFactory(**key, attempt=number)
    return call.tenant_id, call.service_call_id


def test_the_attempts_after_one_come_in_order(tenant: Any) -> None:
    call = create_call(tenant, 5)
    assert [one.attempt for one in list_attempts_after(*call, 0, 2)] == [1, 2]
    assert [one.attempt for one in list_attempts_after(*call, 2, 9)] == [3, 4, 5]


@pytest.mark.parametrize("attempts", [0, 1, MAX_LISTED - 1, MAX_LISTED])
def test_a_list_has_all_of_a_few_attempts(tenant: Any, attempts: int) -> None:
    listed = list_attempts_without_bodies(*create_call(tenant, attempts))
    assert [one.attempt for one in listed] == list(range(1, attempts + 1))


def test_a_list_has_the_first_and_the_last_of_many_attempts(tenant: Any) -> None:
    listed = list_attempts_without_bodies(*create_call(tenant, MAX_LISTED + 3))
    assert [one.attempt for one in listed] == [
        *range(1, FIRST_LISTED + 1),
        *range(FIRST_LISTED + 4, MAX_LISTED + 4),
    ]

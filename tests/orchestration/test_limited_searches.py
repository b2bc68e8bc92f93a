"""A search that stops after a number of calls goes on where it stopped: no call is missing, and none comes twice."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from eventservice.tenants.models import Tenant
from orchestration.queries import call_lists
from orchestration.queries.call_lists import CallFilter, CallListPage, Order, Position, list_calls
from tests.factories import NOON, ServiceCallFactory, ServiceCallTagFactory

pytestmark = pytest.mark.django_db

CALLS, LIMIT = 30, 3
Key = tuple[Any, uuid.UUID]


@pytest.fixture(autouse=True)
def no_shortcuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walk whatever the filter, as with many calls."""
    for name in ("MAX_SORTED_IDS", "MAX_SORTED_OF_PREFIX", "MAX_SORTED_RETRYING"):
        monkeypatch.setattr(call_lists, name, -1)


@pytest.fixture
def calls(tenant: Tenant, intruder: Tenant) -> list[Any]:
    """Create calls of two tenants, of which several have the same times."""
    chance = random.Random(11)
    found = []
    for _ in range(CALLS):
        at = NOON + timedelta(seconds=chance.randint(0, 9))
        status = chance.choice(["Scheduled", "Scheduled", "Failed", "Succeeded"])
        call = ServiceCallFactory(
            tenant_id=chance.choice([tenant, intruder]).tenant_id,
            status=status,
            submitted_at=at,
            due_at=at + timedelta(minutes=chance.randint(0, 5)),
            name=chance.choice(["sync a", "sync b", "greet", "other"]),
            **({"attempt": chance.randint(0, 1)} if status == "Scheduled" else {}),
        )
        for tag in chance.sample(["a", "b"], chance.randint(0, 2)):
            ServiceCallTagFactory(tenant_id=call.tenant_id, service_call_id=call.service_call_id, tag=tag)
        found.append(call)
    return found


def walk(filters: list[CallFilter], order: Order, max_walked: int) -> Iterator[CallListPage]:
    after: Position | None = None
    for _ in range(10 * CALLS):
        page = list_calls(filters, order, LIMIT, after=after, max_walked=max_walked)
        yield page
        if page.following is None:
            return
        assert page.following != after
        after = page.following
    raise AssertionError("the search does not end")


def list_ids(calls: list[Any], column: str, descending: bool) -> list[uuid.UUID]:
    key = lambda call: (getattr(call, column), call.service_call_id)  # noqa: E731
    return [call.service_call_id for call in sorted(calls, key=key, reverse=descending)]


@pytest.mark.parametrize("max_walked", [1, 3, 10, 1000])
@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("column", ["submitted_at", "due_at"])
def test_the_pages_together_have_every_match_once_and_in_order(
    tenant: Tenant, intruder: Tenant, calls: list[Any], column: str, descending: bool, max_walked: int
) -> None:
    order = Order(column, descending)
    for both in (False, True):
        owners = [tenant.tenant_id, intruder.tenant_id] if both else [tenant.tenant_id]
        own = [call for call in calls if call.tenant_id in owners]
        for wanted, matching in (
            ({"name_prefix": "sync"}, [call for call in own if call.name.startswith("sync")]),
            ({"retrying": True}, [call for call in own if call.status == "Scheduled" and call.attempt]),
            ({"name_prefix": "nobody"}, []),
        ):
            filters = [replace(CallFilter(owner), **wanted) for owner in owners]
            pages = list(walk(filters, order, max_walked))
            found = [call.service_call_id for page in pages for call in page.calls]
            assert found == list_ids(matching, column, descending), wanted
            # Only a page that is not the last one may be cut short, and it says so.
            for page in pages[:-1]:
                assert page.is_partial or len(page.calls) == LIMIT


def test_a_page_that_was_cut_short_leads_back_as_well(tenant: Tenant, calls: list[Any]) -> None:
    filters, order = [CallFilter(tenant.tenant_id, name_prefix="sync")], Order()
    *_, last = (page for page in walk(filters, order, 3) if page.calls)
    own = [call for call in calls if call.tenant_id == tenant.tenant_id and call.name.startswith("sync")]
    found: list[uuid.UUID] = [call.service_call_id for call in last.calls]
    before = last.preceding
    while before is not None:
        page = list_calls(filters, order, LIMIT, before=before, max_walked=3)
        found = [call.service_call_id for call in page.calls] + found
        before = page.preceding
    expected = list_ids(own, "submitted_at", True)
    assert found == expected

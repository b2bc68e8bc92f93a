"""An engine starts no call while dispatch is paused, and records the outcomes of those that it has started."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.orchestration.support import FakeEgress, build_engine, get_status, submit
from timers.pause import pause_dispatch, resume_dispatch

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


def test_an_engine_starts_nothing_while_dispatch_is_paused_and_records_what_it_has_begun(tenant: Any) -> None:
    first = submit(tenant)
    egress = FakeEgress()
    engine = build_engine(egress)
    engine.poll_now()
    pause_dispatch("somebody", "")
    engine.poll_after(1.0)
    second = submit(tenant)
    egress.answer()
    for _ in range(5):
        engine.poll_after(1.0)
    assert [get_status(tenant, call) for call in (first, second)] == ["Succeeded", "Scheduled"]
    assert len(egress.sent) == 1
    resume_dispatch()
    engine.poll_after(1.0)
    assert len(egress.sent) == 2


def test_an_engine_that_starts_paused_starts_nothing(tenant: Any) -> None:
    pause_dispatch("somebody", "")
    call = submit(tenant)
    egress = FakeEgress()
    engine = build_engine(egress)
    for _ in range(3):
        engine.poll_after(1.0)
    assert (egress.sent, get_status(tenant, call)) == ([], "Scheduled")


def test_an_engine_that_was_fenced_off_obeys_a_pause_that_it_has_not_seen(tenant: Any) -> None:
    egress = FakeEgress()
    engine = build_engine(egress)
    engine.poll_now()
    pause_dispatch("somebody", "")
    submit(tenant)
    engine._join(engine.membership.role)
    engine.poll_now()
    assert egress.sent == []


def test_the_look_for_a_pause_costs_no_statement_of_its_own(tenant: Any) -> None:
    engine = build_engine(FakeEgress())
    engine.poll_now()
    with CaptureQueriesContext(connection) as queries:
        for _ in range(4):
            engine.poll_after(1.0)
    looks = [query["sql"] for query in queries if "dispatch_pauses" in query["sql"]]
    assert len(looks) == 4
    assert all("FROM nodes" in look for look in looks)

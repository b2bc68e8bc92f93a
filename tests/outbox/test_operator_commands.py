"""`manage.py outbox`: status, parked, retry, skip, replay and prune."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command

from eventservice.kernel.ids import new_id
from eventservice.tenants.models import Tenant
from outbox.models import OutboxEvent
from outbox.parking import list_parked_events
from tests.outbox.support import RecordingPublisher, build_dispatcher, drain, store_run

pytestmark = pytest.mark.django_db


def outbox(*arguments: str) -> str:
    out = io.StringIO()
    call_command("outbox", *arguments, stdout=out)
    return out.getvalue()


@pytest.fixture
def parked() -> OutboxEvent:
    poison = store_run(new_id(), 3)[0]
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    drain(build_dispatcher(publisher))
    return list_parked_events().get()


def test_status_tells_what_waits_and_who_is_at_work(parked: OutboxEvent) -> None:
    one = build_dispatcher(RecordingPublisher())
    one.dispatch_once()
    store_run(new_id(), 2)
    shown = outbox("status")
    assert "unpublished          2" in shown
    assert "parked               1 (2 events wait behind them)" in shown
    assert "16 partitions" in shown


def test_parked_lists_the_event_and_why(parked: OutboxEvent) -> None:
    shown = outbox("parked")
    assert shown.startswith(f"{parked.id}  ")
    assert "remembering: too large" in shown


def test_retry_lets_it_and_those_behind_it_flow(parked: OutboxEvent) -> None:
    outbox("retry", str(parked.id))
    assert drain(build_dispatcher(RecordingPublisher())) == 3


def test_skip_lets_those_behind_it_flow(parked: OutboxEvent) -> None:
    outbox("skip", str(parked.id))
    assert drain(build_dispatcher(RecordingPublisher())) == 2


@pytest.mark.parametrize("action", ["retry", "skip"])
def test_an_event_that_is_not_parked_is_refused(action: str) -> None:
    with pytest.raises(CommandError, match="Event 7 is not parked"):
        outbox(action, "7")


@pytest.mark.parametrize("since", ["2h", "2000-01-01T00:00:00Z"])
def test_replay_takes_a_time_or_how_long_ago(since: str) -> None:
    store_run(new_id(), 2)
    drain(build_dispatcher(RecordingPublisher()))
    assert outbox("replay", "--since", since) == "2 events will be published again.\n"


def test_replay_may_be_of_one_tenant_by_its_name_or_its_id(tenant: Tenant, intruder: Tenant) -> None:
    store_run(new_id(), 2, tenant_id=tenant.pk)
    store_run(new_id(), 3, tenant_id=intruder.pk)
    for named in (tenant.name, str(tenant.pk)):
        drain(build_dispatcher(RecordingPublisher()))
        assert outbox("replay", "--since", "2000-01-01", "--tenant", named).startswith("2 events")
    with pytest.raises(CommandError, match="There is no tenant 'nobody'"):
        outbox("replay", "--since", "2h", "--tenant", "nobody")


def test_prune_takes_an_age() -> None:
    store_run(new_id(), 2)
    drain(build_dispatcher(RecordingPublisher()))
    assert outbox("prune", "--older-than", "30d") == "0 rows deleted.\n"


@pytest.mark.parametrize("arguments", [("replay", "--since", "soon"), ("prune", "--older-than", "30")])
def test_what_it_cannot_read_it_refuses_with_an_example(arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError, match="such as"):
        outbox(*arguments)

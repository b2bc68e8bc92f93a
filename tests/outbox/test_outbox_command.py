"""`manage.py outbox`: status, parked, retry, skip, replay and prune."""

from __future__ import annotations

import io
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from eventservice.kernel.ids import new_id
from eventservice.operators.models import OperatorAction
from eventservice.tenants.models import Tenant
from outbox.models import OutboxEvent
from outbox.parking import list_parked_events
from outbox.publisher_spec import PublisherSpec
from tests.outbox.support import RecordingPublisher, build_dispatcher, drain, store_run

pytestmark = pytest.mark.django_db


def run_outbox(*arguments: str) -> str:
    out = io.StringIO()
    call_command("outbox", *arguments, stdout=out)
    return out.getvalue()


def test_the_status_names_no_age_of_events_that_do_not_exist() -> None:
    assert "unpublished          0\nparked               0\n" in run_outbox("status")


@pytest.fixture
def poison_event() -> OutboxEvent:
    poison = store_run(new_id(), 3)[0]
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    drain(build_dispatcher(publisher))
    return list_parked_events().get()


def test_status_shows_what_waits_and_the_live_dispatchers(poison_event: OutboxEvent) -> None:
    dispatcher = build_dispatcher(RecordingPublisher())
    dispatcher.dispatch_once()
    store_run(new_id(), 2)
    shown = run_outbox("status")
    assert "unpublished          2" in shown
    assert "parked               1 (2 events wait behind them)" in shown
    assert "16 partitions" in shown


def test_parked_lists_the_event_with_its_error(poison_event: OutboxEvent) -> None:
    shown = run_outbox("parked")
    assert shown.startswith(f"{poison_event.id}  {poison_event.event_id}  ")
    assert "recording: too large" in shown


def test_retry_publishes_it_and_those_behind_it(poison_event: OutboxEvent) -> None:
    run_outbox("retry", str(poison_event.id))
    assert drain(build_dispatcher(RecordingPublisher())) == 3


@pytest.mark.parametrize(("item", "warns"), [("recording=redis://b.test", False), ("log", True)])
def test_retry_names_the_publisher_that_refused_the_event(
    poison_event: OutboxEvent, item: str, warns: bool
) -> None:
    out, err = io.StringIO(), io.StringIO()
    with override_settings(PUBLISHERS=[PublisherSpec.parse(item)]):
        call_command("outbox", "retry", str(poison_event.id), stdout=out, stderr=err)
    assert "because the publisher recording refused it" in out.getvalue()
    assert ("PUBLISHERS of this process does not name 'recording'" in err.getvalue()) == warns


def test_skip_publishes_those_behind_it(poison_event: OutboxEvent) -> None:
    run_outbox("skip", str(poison_event.id))
    assert drain(build_dispatcher(RecordingPublisher())) == 2


@pytest.mark.parametrize(("action", "published"), [("retry", 3), ("skip", 2)])
def test_an_event_is_named_by_the_id_that_the_api_shows(
    poison_event: OutboxEvent, action: str, published: int
) -> None:
    assert str(poison_event.event_id) in run_outbox(action, str(poison_event.event_id))
    assert drain(build_dispatcher(RecordingPublisher())) == published


@pytest.mark.parametrize("action", ["retry", "skip"])
@pytest.mark.parametrize("event", ["7", "9" * 18, str(UUID(int=7))])
def test_an_event_that_is_not_parked_is_refused(poison_event: OutboxEvent, action: str, event: str) -> None:
    with pytest.raises(CommandError, match=f"Event {event} is not parked"):
        run_outbox(action, event)
    assert not OperatorAction.across_tenants.exists()


@pytest.mark.parametrize("event", ["nonsense", "9" * 19, "-1", "²"])
def test_what_names_no_event_is_refused(event: str) -> None:
    with pytest.raises(CommandError, match="neither an event's number nor its id"):
        run_outbox("retry", "--", event)


@pytest.mark.parametrize("since", ["2h", "2000-01-01T00:00:00Z"])
def test_replay_accepts_a_time_or_a_duration(since: str) -> None:
    store_run(new_id(), 2)
    drain(build_dispatcher(RecordingPublisher()))
    assert run_outbox("replay", "--since", since) == "2 events will be published again.\n"


def test_replay_can_be_limited_to_a_tenant_by_name_or_id(tenant: Tenant, intruder: Tenant) -> None:
    store_run(new_id(), 2, tenant_id=tenant.pk)
    store_run(new_id(), 3, tenant_id=intruder.pk)
    for named in (tenant.name, str(tenant.pk)):
        drain(build_dispatcher(RecordingPublisher()))
        assert run_outbox("replay", "--since", "2000-01-01", "--tenant", named).startswith("2 events")
    with pytest.raises(CommandError, match="There is no tenant 'nobody'"):
        run_outbox("replay", "--since", "2h", "--tenant", "nobody")


def test_prune_accepts_an_age() -> None:
    store_run(new_id(), 2)
    drain(build_dispatcher(RecordingPublisher()))
    assert run_outbox("prune", "--older-than", "30d") == "Deleted 0 events and 0 webhook deliveries.\n"


@pytest.mark.parametrize("arguments", [("replay", "--since", "soon"), ("prune", "--older-than", "30")])
def test_invalid_arguments_are_refused_with_an_example(arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError, match="such as"):
        run_outbox(*arguments)

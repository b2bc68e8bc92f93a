"""The sample week consists of rows like those of a real system, and no pending call reaches a stranger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.db.models import Count, F

from eventservice.db.now import db_now
from eventservice.devtools.demo.companies import LIMITS
from eventservice.tenants.models import Tenant
from execution.models import HttpExecution
from orchestration.models import ServiceCall, ServiceCallTag
from orchestration.states import LIVE, Status
from outbox.models import OutboxEvent
from timers.models import TimerSchedule

TARGET = "http://127.0.0.1:9"


def test_an_invalid_target_is_refused_before_anything_is_created(db: None) -> None:
    with pytest.raises(CommandError, match="--target"):
        call_command("seed_demo", "--target", "x")
    assert not Tenant.objects.exists()


def seed(**options: Any) -> None:
    call_command("seed_demo", **{"calls": 150, "target": TARGET, **options})


def select_calls() -> Any:
    return ServiceCall.across_tenants.all()


@pytest.fixture(scope="module")
def seeded(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Create the week once, for all tests that only read it."""
    with django_db_blocker.unblock(), transaction.atomic():
        seed()
        yield
        transaction.set_rollback(True)


@pytest.fixture
def week(seeded: None, db: None) -> None:
    pass


def test_pending_calls_reach_only_the_mock_target(week: None) -> None:
    for call in select_calls().filter(status__in=LIVE):
        url = call.request_spec["url"]
        assert url.startswith(f"{TARGET}/") or url.split("/")[2].endswith(".invalid"), url


def test_due_calls_have_finished(week: None) -> None:
    soon = db_now() - timedelta(seconds=30)
    assert not select_calls().filter(status__in=LIVE, due_at__lt=soon).exists()
    assert not select_calls().filter(status=Status.RUNNING).exists()
    assert not HttpExecution.across_tenants.filter(finished_at=None).exists()


def test_no_timestamp_is_in_the_future(week: None) -> None:
    now = db_now()
    assert not select_calls().filter(submitted_at__gt=now).exists()
    assert not select_calls().filter(finished_at__gt=now).exists()
    assert not HttpExecution.across_tenants.filter(finished_at__gt=now).exists()
    assert not OutboxEvent.across_tenants.filter(created_at__gt=now).exists()


def test_events_are_numbered_without_gaps_and_in_chronological_order(week: None) -> None:
    events = OutboxEvent.across_tenants.order_by("aggregate_id", "aggregate_seq")
    seen: dict[Any, Any] = {}
    for call, seq, at in events.values_list("aggregate_id", "aggregate_seq", "created_at"):
        before_seq, before = seen.get(call, (0, at))
        assert (seq, before <= at) == (before_seq + 1, True)
        seen[call] = seq, at
    assert {call: seq + 1 for call, (seq, _) in seen.items()} == dict(
        select_calls().values_list("service_call_id", "next_seq")
    )


def test_every_call_has_its_timer_and_its_attempts(week: None) -> None:
    states = dict(TimerSchedule.across_tenants.values_list("service_call_id", "state"))
    attempts = Counter(HttpExecution.across_tenants.values_list("service_call_id", flat=True))
    for call in select_calls():
        expected = {Status.SCHEDULED: "Scheduled", Status.CANCELED: None}.get(call.status, "Reached")
        assert states.get(call.service_call_id) == expected, call.status
        assert attempts[call.service_call_id] == call.attempt


def test_the_week_contains_calls_of_every_kind(week: None) -> None:
    by_status = dict(select_calls().values_list("status").annotate(n=Count("*")))
    assert set(by_status) == {"Scheduled", "Succeeded", "Failed", "Canceled"}
    assert {tenant for (tenant,) in select_calls().values_list("tenant_id").distinct()} == set(
        Tenant.objects.filter(name__in=LIMITS).values_list("pk", flat=True)
    )
    assert select_calls().filter(status=Status.SCHEDULED, attempt__gt=0).exists()
    assert select_calls().filter(status=Status.SUCCEEDED, attempt__gt=1).exists()
    assert select_calls().filter(external_id__isnull=False, status=Status.SCHEDULED).exists()
    assert select_calls().filter(external_id__isnull=False, status=Status.SUCCEEDED).exists()
    assert ServiceCallTag.across_tenants.filter(tag="payments").exists()
    assert OutboxEvent.across_tenants.filter(parked_at__isnull=False, attempts__gt=0).count() == 3
    unpublished = OutboxEvent.across_tenants.filter(published_at=None)
    assert not unpublished.filter(parked_at=None).exists()


def test_attempts_take_time_and_start_after_the_due_time(week: None) -> None:
    attempts = HttpExecution.across_tenants.all()
    assert len(set(attempts.values_list("latency_ms", flat=True))) > 100
    first = select_calls().filter(attempt=1, finished_at__isnull=False)
    assert not first.filter(started_at__lt=F("due_at")).exists()
    assert not first.filter(finished_at__lt=F("started_at")).exists()

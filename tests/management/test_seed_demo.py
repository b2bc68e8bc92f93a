"""The made-up week: rows as the system would have written them, and nothing in it that could do harm."""

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


def test_a_target_that_is_none_is_refused_before_anything_is_made(db: None) -> None:
    with pytest.raises(CommandError, match="--target"):
        call_command("seed_demo", "--target", "x")
    assert not Tenant.objects.exists()


def seed(**options: Any) -> None:
    call_command("seed_demo", **{"calls": 150, "target": TARGET, **options})


def calls() -> Any:
    return ServiceCall.across_tenants.all()


@pytest.fixture(scope="module")
def made(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Made once, for all who only look at it."""
    with django_db_blocker.unblock(), transaction.atomic():
        seed()
        yield
        transaction.set_rollback(True)


@pytest.fixture
def week(made: None, db: None) -> None:
    pass


def test_nothing_that_is_still_to_be_sent_reaches_anybody(week: None) -> None:
    for call in calls().filter(status__in=LIVE):
        url = call.request_spec["url"]
        assert url.startswith(f"{TARGET}/") or url.split("/")[2].endswith(".invalid"), url


def test_whatever_was_due_has_come_to_its_end(week: None) -> None:
    soon = db_now() - timedelta(seconds=30)
    assert not calls().filter(status__in=LIVE, due_at__lt=soon).exists()
    assert not calls().filter(status=Status.RUNNING).exists()
    assert not HttpExecution.across_tenants.filter(finished_at=None).exists()


def test_nothing_is_dated_ahead(week: None) -> None:
    now = db_now()
    assert not calls().filter(submitted_at__gt=now).exists()
    assert not calls().filter(finished_at__gt=now).exists()
    assert not HttpExecution.across_tenants.filter(finished_at__gt=now).exists()
    assert not OutboxEvent.across_tenants.filter(created_at__gt=now).exists()


def test_every_call_has_its_events_without_a_gap_and_in_the_order_of_time(week: None) -> None:
    events = OutboxEvent.across_tenants.order_by("aggregate_id", "aggregate_seq")
    seen: dict[Any, Any] = {}
    for call, seq, at in events.values_list("aggregate_id", "aggregate_seq", "created_at"):
        before_seq, before = seen.get(call, (0, at))
        assert (seq, before <= at) == (before_seq + 1, True)
        seen[call] = seq, at
    assert {call: seq + 1 for call, (seq, _) in seen.items()} == dict(
        calls().values_list("service_call_id", "next_seq")
    )


def test_every_call_has_its_timer_and_as_many_attempts_as_it_says(week: None) -> None:
    states = dict(TimerSchedule.across_tenants.values_list("service_call_id", "state"))
    attempts = Counter(HttpExecution.across_tenants.values_list("service_call_id", flat=True))
    for call in calls():
        expected = {Status.SCHEDULED: "Scheduled", Status.CANCELED: None}.get(call.status, "Reached")
        assert states.get(call.service_call_id) == expected, call.status
        assert attempts[call.service_call_id] == call.attempt


def test_the_week_holds_all_that_a_first_look_should_find(week: None) -> None:
    by_status = dict(calls().values_list("status").annotate(n=Count("*")))
    assert set(by_status) == {"Scheduled", "Succeeded", "Failed", "Canceled"}
    assert {tenant for (tenant,) in calls().values_list("tenant_id").distinct()} == set(
        Tenant.objects.filter(name__in=LIMITS).values_list("pk", flat=True)
    )
    assert calls().filter(status=Status.SCHEDULED, attempt__gt=0).exists()
    assert calls().filter(status=Status.SUCCEEDED, attempt__gt=1).exists()
    assert calls().filter(external_id__isnull=False, status=Status.SCHEDULED).exists()
    assert calls().filter(external_id__isnull=False, status=Status.SUCCEEDED).exists()
    assert ServiceCallTag.across_tenants.filter(tag="payments").exists()
    assert OutboxEvent.across_tenants.filter(parked_at__isnull=False, attempts__gt=0).count() == 3
    unpublished = OutboxEvent.across_tenants.filter(published_at=None)
    assert not unpublished.filter(parked_at=None).exists()


def test_it_takes_time_to_answer_and_is_a_little_late(week: None) -> None:
    attempts = HttpExecution.across_tenants.all()
    assert len(set(attempts.values_list("latency_ms", flat=True))) > 100
    first = calls().filter(attempt=1, finished_at__isnull=False)
    assert not first.filter(started_at__lt=F("due_at")).exists()
    assert not first.filter(finished_at__lt=F("started_at")).exists()

"""When `seed_demo` runs and when it refuses, and the two failing hosts that the week always contains."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from eventservice.devtools.demo.companies import DEAD_HOST, LIMITS, OUTAGE_HOST
from eventservice.operators.models import OperatorAction
from eventservice.tenants.models import Tenant
from orchestration.models import ServiceCall
from orchestration.states import TERMINAL, Status

TARGET = "http://127.0.0.1:9"


def seed(**options: Any) -> None:
    call_command("seed_demo", **{"calls": 150, "target": TARGET, **options})


def select_calls() -> Any:
    return ServiceCall.across_tenants.all()


def test_one_host_is_dead_and_another_has_recovered(db: None) -> None:
    seed()
    dead = select_calls().filter(host=DEAD_HOST).order_by("-submitted_at")
    assert dead.filter(status=Status.SUCCEEDED).exists()
    attempted = dead.exclude(
        outcome_meta=None
    )  # at some hours of the day, the last one is still to be attempted
    assert attempted.first().outcome_meta["errorMeta"]["kind"] in ("Dns", "Timeout", "Connect")
    partner = select_calls().filter(host=OUTAGE_HOST, status__in=TERMINAL).order_by("submitted_at")
    assert partner.filter(status=Status.FAILED).exists()
    assert partner.last().status == Status.SUCCEEDED
    replayed = select_calls().filter(replay_of__isnull=False)
    assert replayed.filter(status=Status.SUCCEEDED, host=OUTAGE_HOST).exists()
    assert OperatorAction.across_tenants.filter(action="replay").exists()


def test_a_second_run_needs_the_again_option(db: None) -> None:
    seed()
    before = select_calls().count()
    with pytest.raises(CommandError, match="--again"):
        seed()
    assert select_calls().count() == before
    seed(again=True, seed=8)
    assert select_calls().count() > 1.5 * before
    assert Tenant.objects.filter(name__in=LIMITS).count() == len(LIMITS)


@override_settings(PRODUCTION=True)
def test_production_needs_the_yes_option(db: None) -> None:
    with pytest.raises(CommandError, match="production"):
        seed()
    assert not Tenant.objects.exists()
    seed(yes=True, calls=50)
    assert Tenant.objects.exists()

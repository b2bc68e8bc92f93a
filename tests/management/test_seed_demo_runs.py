"""When the made-up week is written and when it is not, and the two troubles that it always has."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from eventservice.devtools.demo.companies import DEAD_HOST, LIMITS, OUTAGE_HOST
from eventservice.operators.models import OperatorAction
from eventservice.tenants.models import Tenant
from orchestration.models import ServiceCall
from orchestration.states import Status

TARGET = "http://127.0.0.1:9"


def seed(**options: Any) -> None:
    call_command("seed_demo", **{"calls": 150, "target": TARGET, **options})


def calls() -> Any:
    return ServiceCall.across_tenants.all()


def test_one_host_is_dead_now_and_another_is_well_again(db: None) -> None:
    seed()
    dead = calls().filter(host=DEAD_HOST).order_by("-submitted_at")
    assert dead.filter(status=Status.SUCCEEDED).exists()
    assert dead.first().outcome_meta["errorMeta"]["kind"] in ("Dns", "Timeout", "Connect")
    partner = calls().filter(host=OUTAGE_HOST).order_by("submitted_at")
    assert partner.filter(status=Status.FAILED).exists()
    assert partner.last().status == Status.SUCCEEDED
    replayed = calls().filter(replay_of__isnull=False)
    assert replayed.filter(status=Status.SUCCEEDED, host=OUTAGE_HOST).exists()
    assert OperatorAction.across_tenants.filter(action="replay").exists()


def test_a_second_run_is_refused_unless_it_is_asked_for(db: None) -> None:
    seed()
    before = calls().count()
    with pytest.raises(CommandError, match="--again"):
        seed()
    assert calls().count() == before
    seed(again=True, seed=8)
    assert calls().count() > 1.5 * before
    assert Tenant.objects.filter(name__in=LIMITS).count() == len(LIMITS)


@override_settings(PRODUCTION=True)
def test_a_production_system_is_left_alone_unless_it_is_meant(db: None) -> None:
    with pytest.raises(CommandError, match="production"):
        seed()
    assert not Tenant.objects.exists()
    seed(yes=True, calls=50)
    assert Tenant.objects.exists()

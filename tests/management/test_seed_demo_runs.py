"""When `seed_demo` runs and when it refuses, and the two failing hosts that the week always contains."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from eventservice.devtools.demo.companies import DEAD_HOST, LIMITS, OUTAGE_HOST
from eventservice.kernel.ids import new_id
from eventservice.management.commands import demo
from eventservice.management.commands.up import DEMO
from eventservice.management.profile import TENANT, write_profile
from eventservice.operators.models import OperatorAction
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant
from orchestration.models import ServiceCall
from orchestration.states import LIVE, TERMINAL, Status

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


@pytest.fixture
def profile(db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tenant:
    """Write the profile of a service that runs with another mock target, and return its tenant."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("TARGET_PORT", raising=False)
    tenant = create_tenant(DEMO)
    write_profile({TENANT: str(tenant.tenant_id), "TARGET_PORT": "9137"})
    return tenant


def test_pending_calls_go_to_the_mock_target_of_the_running_service(profile: Tenant) -> None:
    out = StringIO()
    seed(target=None, calls=50, stdout=out)
    assert "Pending calls go to http://127.0.0.1:9137." in out.getvalue()
    urls = {
        spec["url"] for spec in select_calls().filter(status__in=LIVE).values_list("request_spec", flat=True)
    }
    assert any(url.startswith("http://127.0.0.1:9137/") for url in urls)
    assert not any(url.startswith("http://127.0.0.1:9000") for url in urls)


def test_the_demo_says_where_its_calls_go(profile: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "list_live_node_ids", lambda role: [new_id()])
    out = StringIO()
    call_command("demo", "--each", "1", "--for", "0s", stdout=out)
    assert "The calls go to the mock target at http://127.0.0.1:9137." in out.getvalue()
    urls = [spec["url"] for spec in select_calls().values_list("request_spec", flat=True)]
    assert urls
    assert all(url.startswith("http://127.0.0.1:9137/") for url in urls)


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

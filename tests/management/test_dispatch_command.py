"""`manage.py dispatch` and DISPATCH pause and resume, and doctor, the metrics and the console say so."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from eventservice.db.now import db_now
from eventservice.operators.health import (
    check_dispatch,
    check_starting,
    diagnose,
    read_cluster,
    select_problems,
)
from eventservice.operators.models import OperatorAction
from eventservice.runtime.environment import apply_dispatch_setting
from orchestration.statistics.live_counts import read_live_counts
from outbox.status import get_status
from tests.factories import ServiceCallFactory, TimerFactory
from timers.membership import Membership, ensure_shards
from timers.models import Node, NodeRole
from timers.operator_views import list_nodes
from timers.pause import MAX_REASON_LENGTH, find_pause

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("dispatch", *arguments, stdout=out)
    return out.getvalue()


def list_problems() -> dict[str, str]:
    now = db_now()
    findings = diagnose(read_cluster(now, []), read_live_counts(None, now), get_status())
    return {finding.code: finding.text for finding in select_problems(findings)}


def test_dispatch_is_paused_and_resumed_and_both_are_audited() -> None:
    assert "Dispatch is running" in run("status")
    assert "Dispatch is paused." in run("pause", "--reason", "a restore")
    status = run("status")
    assert "Dispatch is paused since" in status
    assert "a restore." in status
    assert "a restore." in run("pause", "--reason", "another")
    assert "running again" in run("resume")
    assert "was not paused" in run("resume")
    entries = OperatorAction.across_tenants.order_by("id")
    assert [(entry.action, entry.subject, entry.detail) for entry in entries] == [
        ("dispatch-pause", "dispatch", {"reason": "a restore"}),
        ("dispatch-resume", "dispatch", {}),
    ]


def test_a_reason_that_is_too_long_is_refused() -> None:
    with pytest.raises(CommandError, match=f"--reason: must have at most {MAX_REASON_LENGTH} characters"):
        run("pause", "--reason", "x" * (MAX_REASON_LENGTH + 1))
    assert find_pause() is None


def test_what_waits_is_counted(tenant: Any) -> None:
    ensure_shards(16)
    call = ServiceCallFactory(tenant_id=tenant.tenant_id)
    TimerFactory(tenant_id=call.tenant_id, service_call_id=call.service_call_id, due_at=db_now())
    assert "calls due       1\n" in run("status")


def test_a_pause_is_reported_and_not_what_follows_from_it(tenant: Any) -> None:
    call = ServiceCallFactory(
        tenant_id=tenant.tenant_id, status="Scheduled", due_at=db_now() - timedelta(minutes=5)
    )
    TimerFactory(tenant_id=call.tenant_id, service_call_id=call.service_call_id, due_at=call.due_at)
    assert list_problems().keys() == {"engine", "dispatcher", "overdue_calls"}
    assert "nothing starts them" in check_starting(db_now()).text
    run("pause", "--reason", "a restore")
    problems = list_problems()
    assert problems.keys() == {"engine", "dispatcher", "dispatch"}
    assert problems["dispatch"].endswith("nothing is sent. a restore.")
    assert check_starting(db_now()).text == problems["dispatch"]


def test_a_process_pauses_dispatch_when_it_starts_if_the_settings_say_so(settings: Any) -> None:
    apply_dispatch_setting()
    assert find_pause() is None
    settings.DISPATCH = "paused"
    for _ in range(2):
        apply_dispatch_setting()
    pause = find_pause()
    assert pause is not None
    assert "DISPATCH=paused" in pause.reason
    assert [entry.action for entry in OperatorAction.across_tenants.all()] == ["dispatch-pause"]


def test_a_setting_that_was_left_is_reported(settings: Any) -> None:
    settings.DISPATCH = "paused"
    apply_dispatch_setting()
    Membership(NodeRole.ENGINE).join()
    assert "DISPATCH=paused is still set" in run("resume")
    assert "DISPATCH=paused is still set" in check_dispatch(find_pause(), list_nodes(), db_now()).remedy
    settings.DISPATCH = "running"
    assert check_dispatch(find_pause(), list_nodes(), db_now()).is_ok


def test_a_setting_for_the_next_start_is_not_called_forgotten(settings: Any) -> None:
    """The nodes of a restored backup are dead. If the setting were removed now, everything would be sent again."""
    settings.DISPATCH = "paused"
    Membership(NodeRole.ENGINE).join()
    Node.objects.update(lease_until=db_now() - timedelta(minutes=1))
    finding = check_dispatch(find_pause(), list_nodes(), db_now())
    assert finding.text == "DISPATCH=paused is set: the next start of a cluster pauses dispatch."
    assert finding.remedy == ""
    assert "the next start of a cluster pauses dispatch" in run("status")

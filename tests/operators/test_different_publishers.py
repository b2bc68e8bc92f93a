"""Dispatchers with different publishers are named: an event goes only to the publishers of the dispatcher that has it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from io import StringIO

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client, override_settings
from django.urls import reverse

from eventservice.kernel.findings import Finding, Severity
from eventservice.kernel.ids import new_id
from eventservice.operators.health import check_cluster, read_cluster
from outbox.publisher_spec import PublisherSpec, list_names
from outbox.publishers import build_publishers
from timers.membership import Membership
from timers.models import Node, NodeRole

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

SPECS = [PublisherSpec.parse(item) for item in ("main=redis://b.test", "log")]
HOUR = timedelta(hours=1)
LEASE = timedelta(seconds=8)


@pytest.fixture(autouse=True)
def with_main() -> Iterator[None]:
    with override_settings(PUBLISHERS=SPECS):
        yield


def create_dispatcher(
    now: datetime, publishers: str | None, process_id: int, *, age: timedelta = HOUR, lease: timedelta = LEASE
) -> None:
    Node.objects.create(
        owner_id=new_id(),
        role=NodeRole.DISPATCHER,
        hostname="host-1",
        process_id=process_id,
        started_at=now - age,
        lease_until=now + lease,
        publishers=publishers,
    )


def find_differences(now: datetime) -> list[Finding]:
    return [f for f in check_cluster(read_cluster(now, [])) if f.code == "different_publishers"]


def test_a_dispatcher_joins_with_the_names_that_settings_list() -> None:
    names = [publisher.name for publisher in build_publishers(SPECS, "json")]
    Membership(NodeRole.DISPATCHER, publishers=names).join()
    assert Node.objects.get().publisher_names == list_names(SPECS) == ["log", "main", "webhook"]


def test_dispatchers_that_differ_are_named_with_the_time_to_replay_from(at_noon: datetime) -> None:
    create_dispatcher(at_noon, "log,main,webhook", 11, age=3 * HOUR)
    create_dispatcher(at_noon, "webhook", 22, age=2 * HOUR)
    create_dispatcher(at_noon, "webhook", 33)
    (finding,) = find_differences(at_noon)
    assert finding.severity is Severity.ERROR
    assert "log, main, webhook: the dispatcher on host-1 (process 11);" in finding.text
    assert "webhook: the dispatcher on host-1 (process 22) and 1 more." in finding.text
    assert f"outbox replay --since {at_noon - 2 * HOUR:%Y-%m-%dT%H:%M:%SZ}`" in finding.remedy


def test_dispatchers_that_agree_are_no_problem(at_noon: datetime) -> None:
    create_dispatcher(at_noon, "log,main,webhook", 11)
    create_dispatcher(at_noon, "log,main,webhook", 22)
    assert find_differences(at_noon) == []


def test_this_process_is_compared_with_dispatchers_that_agree(at_noon: datetime) -> None:
    create_dispatcher(at_noon, "webhook", 11)
    (finding,) = find_differences(at_noon)
    assert finding.severity is Severity.WARNING
    assert finding.text.startswith(
        "This process has other PUBLISHERS (log, main, webhook) than the dispatchers."
    )
    assert "outbox replay --since" in finding.remedy


@pytest.mark.parametrize(("publishers", "lease"), [("webhook", -LEASE), (None, LEASE)])
def test_dead_dispatchers_and_those_of_older_releases_are_left_out(
    at_noon: datetime, publishers: str | None, lease: timedelta
) -> None:
    create_dispatcher(at_noon, publishers, 11, lease=lease)
    create_dispatcher(at_noon, "log,main,webhook", 22)
    assert find_differences(at_noon) == []


def test_the_console_and_qinfo_show_the_publishers_of_each_dispatcher(
    at_noon: datetime, client: Client
) -> None:
    client.force_login(get_user_model().objects.create_user("ada", password="a long password", is_staff=True))
    create_dispatcher(at_noon, "log,main,webhook", 11)
    create_dispatcher(at_noon, "webhook", 22)
    page = client.get(reverse("console:cluster")).content.decode()
    assert "for log, main, webhook" in page
    for address in (reverse("console:cluster"), reverse("console:dashboard")):
        assert "The dispatchers have different publishers" in client.get(address).content.decode(), address
    out = StringIO()
    call_command("qinfo", stdout=out)
    assert "log,main,webhook" in out.getvalue()
    assert "The dispatchers have different publishers" in out.getvalue()

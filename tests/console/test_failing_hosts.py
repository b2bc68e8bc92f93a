"""A failing host is named with its port, unless that is the default one, and with the error of its latest calls."""

from __future__ import annotations

from datetime import datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.test import Client

from eventservice.kernel.findings import Severity
from eventservice.operators.health import check_retrying_calls, list_failing_hosts
from eventservice.tenants.models import Tenant
from orchestration.statistics.rollup import roll_up
from tests.factories import NOON, ServiceCallFactory

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

DNS = {"errorMeta": {"kind": "Dns", "message": "no such host", "details": {}}}


def fail_calls(tenant: Tenant, url: str, host: str, count: int = 4, **columns: Any) -> None:
    at = NOON - timedelta(minutes=5)
    spec: dict[str, Any] = {"method": "GET", "url": url, "headers": {}, "body": None}
    given = {"due_at": at, "submitted_at": at, "outcome_meta": DNS, "request_spec": spec, **columns}
    for _ in range(count):
        ServiceCallFactory(tenant_id=tenant.pk, status="Failed", host=host, **given)


def succeed(tenant: Tenant, url: str, host: str, count: int) -> None:
    succeed_at(tenant, url, host, count, NOON - timedelta(minutes=4))


def succeed_at(tenant: Tenant, url: str, host: str, count: int, at: datetime) -> None:
    spec: dict[str, Any] = {"method": "GET", "url": url, "headers": {}, "body": None}
    for _ in range(count):
        ServiceCallFactory(
            tenant_id=tenant.pk, status="Succeeded", host=host, due_at=at, submitted_at=at, request_spec=spec
        )


@pytest.mark.parametrize(
    ("url", "host", "shown"),
    [
        ("https://down.test/in", "down.test", "down.test"),
        ("https://down.test:443/in", "down.test", "down.test"),
        ("http://down.test:8443/in?key=hush", "down.test", "down.test:8443"),
        ("http://127.0.0.1:3000/", "127.0.0.1", "127.0.0.1:3000"),
        ("http://[2001:db8::1]:8080/", "2001:db8::1", "[2001:db8::1]:8080"),
    ],
)
def test_it_is_named_as_it_is_called(viewer: Client, tenant: Tenant, url: str, host: str, shown: str) -> None:
    fail_calls(tenant, url, host)
    roll_up(60)
    page = unescape(viewer.get("/").content.decode())
    assert f"{shown} is failing for acme." in page
    assert "The most frequent error: DNS lookup failed." in page
    assert "hush" not in page


def test_each_port_that_failed_has_a_line(tenant: Tenant) -> None:
    fail_calls(tenant, "https://down.test/", "down.test", 3)
    fail_calls(tenant, "http://down.test:81/", "down.test", 2)
    roll_up(60)
    first, second = list_failing_hosts(None, NOON)
    assert first.text == "down.test is failing for acme."
    assert second.text == "down.test:81 is failing for acme."
    assert (first.host, second.host) == ("down.test:443", "down.test:81")
    assert first.remedy.startswith("3 of 3 calls failed")
    assert second.remedy.startswith("2 of 2 calls failed")


def test_a_port_is_judged_by_its_own_numbers(tenant: Tenant) -> None:
    fail_calls(tenant, "http://10.0.0.1:9555/", "10.0.0.1", 22)
    fail_calls(tenant, "http://10.0.0.1:9471/", "10.0.0.1", 2)
    succeed(tenant, "http://10.0.0.1:9471/", "10.0.0.1", 44)
    roll_up(60)
    (finding,) = list_failing_hosts(None, NOON)
    assert finding.text == "10.0.0.1:9555 is failing for acme."
    assert finding.remedy.startswith("22 of 22 calls failed in the last 15 minutes (100 %)")
    assert (finding.host, finding.severity) == ("10.0.0.1:9555", Severity.ERROR)


def test_a_port_that_works_hides_none_that_does_not(tenant: Tenant) -> None:
    fail_calls(tenant, "http://10.0.0.1:9555/", "10.0.0.1", 4)
    succeed(tenant, "http://10.0.0.1:9471/", "10.0.0.1", 210)  # and later ones than these
    roll_up(60)
    (finding,) = list_failing_hosts(None, NOON)
    assert finding.text == "10.0.0.1:9555 is failing for acme."
    assert finding.remedy.startswith(
        "4 of 214 calls to 10.0.0.1, all ports together, failed in the last 15 minutes (1.9 %). "
        "Of 4 failures looked at, 4 were at this port; of 50 successes, 0."
    )


def test_numbers_of_a_port_are_shown_only_if_all_its_calls_were_counted(tenant: Tenant) -> None:
    fail_calls(tenant, "http://10.0.0.1:9555/", "10.0.0.1", 51)
    fail_calls(tenant, "http://10.0.0.1:9471/", "10.0.0.1", 20)
    # Of these, none is among the latest calls to the host.
    succeed_at(tenant, "http://10.0.0.1:9471/", "10.0.0.1", 40, NOON - timedelta(minutes=6))
    fail_calls(tenant, "http://10.0.0.1:9555/", "10.0.0.1", 200, submitted_at=NOON - timedelta(minutes=3))
    roll_up(60)
    for finding in list_failing_hosts(None, NOON):
        assert finding.remedy.startswith(
            "271 of 311 calls to 10.0.0.1, all ports together, failed in the last 15 minutes (87.1 %). Of 50 failures"
        )


def test_a_few_failures_of_a_port_that_works_are_no_problem(tenant: Tenant) -> None:
    fail_calls(tenant, "http://10.0.0.1:9471/", "10.0.0.1", 4)
    succeed(tenant, "http://10.0.0.1:9471/", "10.0.0.1", 40)
    roll_up(60)
    assert list_failing_hosts(None, NOON) == []


def test_a_port_that_works_hides_no_calls_that_wait_at_another(tenant: Tenant) -> None:
    spec: dict[str, Any] = {"method": "GET", "url": "http://10.0.0.1:9555/", "headers": {}, "body": None}
    for _ in range(10):
        ServiceCallFactory(
            tenant_id=tenant.pk,
            status="Scheduled",
            attempt=1,
            host="10.0.0.1",
            request_spec=spec,
            outcome_meta=DNS,
        )
    succeed(tenant, "http://10.0.0.1:9471/", "10.0.0.1", 60)
    roll_up(60)
    (finding,) = check_retrying_calls(None, NOON)
    assert "10.0.0.1:9555 keep failing: 10 wait" in finding.text


def test_only_the_host_is_named_if_its_calls_have_been_deleted(tenant: Tenant) -> None:
    fail_calls(tenant, "http://down.test:81/", "down.test")
    roll_up(60)
    ServiceCallFactory._meta.model.across_tenants.all().delete()
    (finding,) = list_failing_hosts(None, NOON)
    assert finding.text == "down.test is failing for acme."
    assert "error" not in finding.remedy

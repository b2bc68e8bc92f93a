"""Calls that wait for another attempt: found in the list, counted, and reported with their host and the error."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from html import unescape
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from eventservice.kernel.findings import Finding, Severity
from eventservice.kernel.ttl_cache import clear_caches
from eventservice.operators.health import check_retrying_calls
from eventservice.tenants.models import Tenant
from orchestration.queries import call_lists
from orchestration.statistics import hosts_in_trouble
from orchestration.statistics.rollup import roll_up
from tests.console.call_list import get_list_page, make_call, read_chips, read_names
from tests.factories import NOON, ServiceCallFactory

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

REFUSED = {"errorMeta": {"kind": "Connect", "message": "The connection was refused.", "details": {}}}
DOWN = {"errorMeta": {"kind": "HttpStatus", "message": "503"}, "responseMeta": {"status": 503}}


def make_waiting(tenant: Tenant, count: int, host: str = "down.test", port: str = "", **columns: Any) -> None:
    spec: dict[str, Any] = {
        "method": "POST",
        "url": f"https://{host}{port}/in?token=hush",
        "headers": {},
        "body": None,
    }
    for n in range(count):
        given = {"attempt": 2, "outcome_meta": REFUSED, "request_spec": spec, "host": host, **columns}
        make_call(tenant, -60 - n, **given)


def find_problems(tenant: Tenant | None = None) -> list[Finding]:
    found = check_retrying_calls(tenant.tenant_id if tenant else None, NOON)
    return [finding for finding in found if not finding.is_ok]


# --- the list -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [(5000, 20_000), (0, 20_000), (0, 0)], ids=["few", "some", "many"])
def test_the_list_can_be_filtered_by_them(
    viewer: Client, tenant: Tenant, intruder: Tenant, limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_lists, "MAX_SORTED_IDS", limits[0])
    monkeypatch.setattr(call_lists, "MAX_SORTED_RETRYING", limits[1])
    make_call(tenant, 1, name="never attempted")
    make_call(tenant, 2, name="ended", status="Failed", attempt=3)
    make_call(tenant, 3, name="runs", status="Running", attempt=2)
    make_call(tenant, 4, name="waits", attempt=1, host="one.test")
    make_call(intruder, 5, name="waits, too", attempt=4, host="two.test")
    for sort, expected in (("-submittedAt", ["waits, too", "waits"]), ("dueAt", ["waits", "waits, too"])):
        assert read_names(get_list_page(viewer, f"retrying=1&sort={sort}")) == expected
    assert read_names(get_list_page(viewer, "retrying=1&host=one.test")) == ["waits"]
    assert read_names(get_list_page(viewer, f"retrying=1&tenant={intruder.tenant_id}")) == ["waits, too"]
    assert read_names(get_list_page(viewer, "retrying=1&status=Failed")) == []
    get_list_page(viewer, "retrying=yes", status=400)


def test_a_chip_counts_them_and_takes_the_filter_off_again(viewer: Client, tenant: Tenant) -> None:
    make_call(tenant, 1)
    make_waiting(tenant, 2)
    page = get_list_page(viewer)
    assert (read_chips(page)["Scheduled"], read_chips(page)["Retrying"]) == ("3", "2")
    assert re.search(r'id="chip-Retrying" href="/calls/\?retrying=1"', page)
    page = get_list_page(viewer, "retrying=1&host=down.test")
    assert (read_chips(page)["All"], read_chips(page)["Retrying"]) == ("2", "2")
    assert re.search(r'id="chip-Retrying" href="/calls/\?host=down.test" aria-current="true"', page)
    assert re.search(r'id="chip-All" href="/calls/\?host=down.test">', page)


def test_chips_count_them_without_the_other_filters_if_these_match_many(
    viewer: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_lists, "MAX_SORTED_IDS", 1)
    make_call(tenant, 1, host="one.test")
    make_call(tenant, 2, host="one.test")
    make_waiting(tenant, 2)
    page = get_list_page(viewer, f"host=one.test&tenant={tenant.tenant_id}")
    assert "The counts include all calls of acme" in page
    assert read_chips(page)["Retrying"] == "2"


# --- attention ----------------------------------------------------------------------------------------------------


def test_the_dashboard_names_the_host_with_its_port_and_the_error(
    viewer: Client, tenant: Tenant, intruder: Tenant
) -> None:
    make_waiting(tenant, 12, port=":8443")
    page = unescape(viewer.get("/").content.decode())
    assert "Calls of acme to down.test:8443 keep failing: 12 wait for another attempt." in page
    assert "The most frequent error: Connection failed." in page
    assert "hush" not in page
    assert f'href="/calls/?tenant={tenant.pk}&host=%22down.test%3A8443%22&retrying=1"' in page
    assert re.search(r'<div class="name">Retrying</div>\s*<div class="value">12</div>', page)
    assert "down.test" not in viewer.get(f"/?tenant={intruder.tenant_id}").content.decode()


def test_the_default_port_is_left_out_and_each_port_has_a_line(viewer: Client, tenant: Tenant) -> None:
    make_waiting(tenant, 10, outcome_meta=DOWN)
    (finding,) = find_problems(tenant)
    assert "to down.test keep failing" in finding.text
    assert "HTTP 503" in finding.remedy
    make_waiting(tenant, 5, port=":8443")
    first, second = find_problems(tenant)
    assert "to down.test keep failing: 10 wait" in first.text
    assert "to down.test:8443 keep failing: 5 wait" in second.text
    assert "HTTP 503" in first.remedy
    assert "Connection failed" in second.remedy
    # Each links to the calls of its own port.
    page = unescape(viewer.get("/").content.decode())
    links = re.findall(r'href="/calls/(\?tenant=[^"]*retrying=1)"', page)
    assert [len(read_names(get_list_page(viewer, link[1:]))) for link in links] == [10, 5]


def test_what_was_counted_is_said_if_many_wait_at_several_ports(tenant: Tenant) -> None:
    make_waiting(tenant, 40)
    make_waiting(tenant, 40, port=":8443")
    first, second = find_problems(tenant)
    for finding in (first, second):
        assert "80 to down.test, all ports together, wait for another attempt" in finding.text
        assert "of 20 that were looked at are to this port" in finding.text
    assert {"down.test keep", "down.test:8443 keep"} == {
        re.findall(r"to (\S+ keep)", finding.text)[0] for finding in (first, second)
    }


def test_few_calls_that_wait_are_no_problem(tenant: Tenant) -> None:
    make_waiting(tenant, 9)
    assert find_problems() == []
    make_waiting(tenant, 1)
    assert len(find_problems()) == 1


def test_a_host_to_which_most_calls_succeed_is_no_problem(tenant: Tenant) -> None:
    make_waiting(tenant, 10)
    for _ in range(31):
        due = NOON - timedelta(minutes=5)
        ServiceCallFactory(
            tenant_id=tenant.pk, status="Succeeded", due_at=due, host="down.test", submitted_at=due
        )
    roll_up(60)
    assert find_problems() == []
    make_waiting(tenant, 1)
    assert len(find_problems()) == 1


def test_the_number_is_a_minimum_if_not_all_that_wait_are_looked_at(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_in_trouble, "MAX_CALLS_SAMPLED", 20)
    make_waiting(tenant, 25)
    (finding,) = find_problems()
    assert "keep failing: at least 20 wait for another attempt." in finding.text


def test_doctor_reports_it_as_a_warning(tenant: Tenant) -> None:
    make_waiting(tenant, 10)
    (finding,) = find_problems()
    assert finding.severity is Severity.WARNING
    out = StringIO()
    with pytest.raises(SystemExit):  # no engine is running
        call_command("doctor", "--json", stdout=out)
    (reported,) = [one for one in json.loads(out.getvalue())["findings"] if one["name"] == "retrying calls"]
    assert reported["ok"]
    assert reported["severity"] == "warning"
    assert "down.test" in reported["detail"]


# --- figures ------------------------------------------------------------------------------------------------------


def test_a_metric_counts_them(client: Client, tenant: Tenant) -> None:
    clear_caches()
    make_call(tenant, 1)
    make_waiting(tenant, 3)
    assert "eventservice_calls_retrying 3.0" in client.get("/metrics").content.decode()

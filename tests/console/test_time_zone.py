"""All pages show times in the user's zone with UTC beside it. A choice comes before the browser's zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from eventservice.console.base.time_zone import (
    BROWSER_COOKIE,
    CHOSEN_COOKIE,
    find_zone,
    format_clock,
    format_instant,
)
from eventservice.console.charts import build_lateness_plot, format_slice_time
from eventservice.tenants.models import Tenant
from orchestration.statistics.chart_data import SPANS, ChartSlice
from tests.console.call_list import get_list_page, make_call
from tests.console.call_pages import BROWSER, build_call_url, read_text
from tests.factories import NOON

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        ("UTC", "2026-03-01 12:00:00.000 UTC"),
        ("Etc/UTC", "2026-03-01 12:00:00.000 UTC"),
        ("Europe/Berlin", "2026-03-01 13:00:00.000 CET (12:00:00 UTC)"),
        ("Europe/London", "2026-03-01 12:00:00.000 GMT (12:00:00 UTC)"),
        ("America/Sao_Paulo", "2026-03-01 09:00:00.000 UTC-03 (12:00:00 UTC)"),
        ("Pacific/Auckland", "2026-03-02 01:00:00.000 NZDT (2026-03-01 12:00:00 UTC)"),
    ],
)
def test_an_instant_is_shown_in_the_zone_with_utc_beside_it(zone: str, expected: str) -> None:
    with timezone.override(find_zone(zone)):
        assert format_instant(NOON) == expected


def test_a_list_shows_the_day_only_if_it_is_not_today() -> None:
    with timezone.override("Europe/Berlin"):
        assert format_clock(NOON, NOON) == "13:00:00"
        assert format_clock(NOON + timedelta(hours=11), NOON) == "Mar 2, 00:00"
        assert format_clock(datetime(2025, 3, 1, tzinfo=UTC), NOON) == "Mar 1, 2025"


def test_the_browsers_zone_is_used_until_the_user_chooses_one(viewer: Client, tenant: Tenant) -> None:
    make_call(tenant)
    assert 'title="2026-03-01 13:00:00.000 UTC"' in get_list_page(viewer)
    viewer.cookies[BROWSER_COOKIE] = "Europe%2FBerlin"
    assert 'title="2026-03-01 14:00:00.000 CET (13:00:00 UTC)"' in get_list_page(viewer)
    page = viewer.post("/preferences/", {"zone": "Asia/Tokyo"}, follow=True)
    assert "Preferences saved." in read_text(page)
    assert "2026-03-01 21:00:00.000 JST (12:00:00 UTC)" in read_text(page)
    assert 'title="2026-03-01 22:00:00.000 JST (13:00:00 UTC)"' in get_list_page(viewer)
    viewer.post("/preferences/", {"zone": ""})
    assert 'title="2026-03-01 14:00:00.000 CET (13:00:00 UTC)"' in get_list_page(viewer)


@pytest.mark.parametrize("cookie", ["Europe/Atlantis", "../../etc/passwd", "%00", "x" * 5000, "%ff"])
def test_a_zone_that_does_not_exist_is_ignored_in_a_cookie(viewer: Client, cookie: str) -> None:
    viewer.cookies[CHOSEN_COOKIE] = cookie
    viewer.cookies[BROWSER_COOKIE] = "Asia/Tokyo"
    assert "JST" in read_text(viewer.get("/preferences/", headers=BROWSER))


def test_a_zone_that_does_not_exist_is_refused(viewer: Client) -> None:
    page = viewer.post("/preferences/", {"zone": "Europe/Atlantis"}, headers=BROWSER)
    assert page.status_code == 400
    assert "Choose a time zone from the list." in read_text(page)
    assert CHOSEN_COOKIE not in page.cookies


def test_the_form_of_filters_shows_its_times_in_the_users_zone(viewer: Client, tenant: Tenant) -> None:
    viewer.cookies[BROWSER_COOKIE] = "Europe/Berlin"
    page = get_list_page(viewer, "from=2026-03-01T12:00Z")
    assert 'name="from" value="2026-03-01T13:00"' in page
    assert 'name="zone" value="Europe/Berlin"' in page
    assert "Remove the filter From: 2026-03-01 13:00:00 CET (12:00:00 UTC)" in page
    assert 'name="from" value="2026-03-01T13:00"' in get_list_page(
        viewer, "from=2026-03-01T07:00&zone=America/New_York"
    )


def test_the_dialog_for_rescheduling_opens_in_the_users_zone(operator: Client, tenant: Tenant) -> None:
    call = make_call(tenant)
    operator.cookies[BROWSER_COOKIE] = "America/New_York"
    address = build_call_url(tenant.tenant_id, call.service_call_id, "call-reschedule")
    page = operator.get(address, headers=BROWSER).content.decode()
    assert re.search(r'name="time"\s+value="08:00"', page)
    assert "<option selected>America/New_York</option>" in page
    assert "Sun 2026-03-01 08:00:00 EST (13:00:00 UTC)" in page


def test_the_filters_of_timers_are_in_the_users_zone(viewer: Client, tenant: Tenant) -> None:
    for hour in (13, 15):
        make_call(tenant, due_at=NOON.replace(hour=hour), external_id=f"at-{hour}", namespace="default")
    viewer.cookies[BROWSER_COOKIE] = "Europe/Berlin"
    address = "/timers/?from=2026-03-01T15:30&zone=Europe/Berlin"  # 14:30 UTC
    page = viewer.get(address, headers=BROWSER).content.decode()
    assert "at-15" in page
    assert "at-13" not in page
    assert 'value="2026-03-01T15:30"' in page
    assert '<input type="hidden" name="zone" value="Europe/Berlin">' in page


def test_charts_have_the_clock_of_the_users_zone() -> None:
    minute = timedelta(minutes=1)
    span = SPANS["15m"]
    slices = [ChartSlice(NOON + n * minute, NOON + (n + 1) * minute) for n in range(15)]
    with timezone.override("Asia/Kathmandu"):  # 5:45 h before UTC
        plot = build_lateness_plot(slices, span)
        assert [tick.text for tick in plot.labels] == ["17:45", "17:48", "17:51", "17:54", "17:57"]
        assert format_slice_time(slices[0], span) == "17:45–17:46"
    assert [tick.text for tick in build_lateness_plot(slices, span).labels][:2] == ["12:00", "12:03"]
    days = [ChartSlice(NOON + n * 180 * minute, NOON + (n + 1) * 180 * minute) for n in range(56)]
    with timezone.override("America/New_York"):
        labels = build_lateness_plot(days, SPANS["7d"]).labels
    assert [tick.text for tick in labels] == ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]

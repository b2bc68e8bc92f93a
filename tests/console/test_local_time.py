"""A local time is resolved to its instant, also when clocks go forward or back."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.utils import timezone

from eventservice.console.base.time_zone import list_time_zones
from eventservice.console.calls.local_time import LocalTimeForm, RelativeTimeForm, ResolvedTime, split_instant

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def validate(date: str, time: str, zone: str = "Europe/Berlin") -> LocalTimeForm:
    form = LocalTimeForm({"date": date, "time": time, "zone": zone}, now=NOW)
    form.is_valid()
    return form


def resolve(date: str, time: str, zone: str = "Europe/Berlin") -> ResolvedTime:
    form = validate(date, time, zone)
    assert form.resolved is not None, form.errors
    return form.resolved


@pytest.mark.parametrize(
    ("date", "time", "zone", "expected"),
    [
        ("2026-03-01", "14:10", "UTC", datetime(2026, 3, 1, 14, 10, tzinfo=UTC)),
        ("2026-03-02", "14:10:30", "Europe/Berlin", datetime(2026, 3, 2, 13, 10, 30, tzinfo=UTC)),
        ("2026-07-01", "14:10", "Europe/Berlin", datetime(2026, 7, 1, 12, 10, tzinfo=UTC)),
        ("2026-07-01", "14:10", "America/New_York", datetime(2026, 7, 1, 18, 10, tzinfo=UTC)),
        ("2026-07-01", "14:10", "", datetime(2026, 7, 1, 14, 10, tzinfo=UTC)),
        ("2026-03-01", "12:00", "UTC", NOW),
    ],
)
def test_a_local_time_is_resolved_to_its_instant(date: str, time: str, zone: str, expected: datetime) -> None:
    assert resolve(date, time, zone) == ResolvedTime(expected)


def test_a_skipped_time_is_refused_and_the_next_valid_one_is_named() -> None:
    errors = validate("2026-03-29", "02:30").errors
    assert list(errors) == ["time"]
    assert "02:30 does not exist on this day in Europe/Berlin" in errors["time"][0]
    assert "Choose 03:30" in errors["time"][0]
    assert resolve("2026-03-29", "03:30").at == datetime(2026, 3, 29, 1, 30, tzinfo=UTC)


def test_the_first_of_two_equal_local_times_is_used_with_a_note() -> None:
    moment = resolve("2026-10-25", "02:30")
    assert moment.at == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert "(00:30 UTC) is used; the second is at 01:30 UTC" in moment.note


@pytest.mark.parametrize(
    ("date", "time", "zone", "field", "message"),
    [
        ("2026-03-01", "11:58", "UTC", "date", "in the past"),
        ("", "11:58", "UTC", "date", "Choose a date"),
        ("01.03.2026", "11:58", "UTC", "date", "Choose a date"),
        ("2026-03-02", "", "UTC", "time", "Choose a time"),
        ("2026-03-02", "12:00+01:00", "UTC", "time", "Choose a time"),
        ("2026-03-02", "25:00", "UTC", "time", "Choose a time"),
        ("2026-03-02", "12:00", "Europe/Atlantis", "zone", "from the list"),
        ("2026-03-02", "12:00", "../etc/passwd", "zone", "from the list"),
        ("9999-12-31", "23:59", "America/New_York", "date", "not supported"),
        ("2036-03-02", "12:00", "UTC", "date", "within ten years from now"),
    ],
)
def test_an_invalid_time_is_refused_at_its_field(
    date: str, time: str, zone: str, field: str, message: str
) -> None:
    errors = validate(date, time, zone).errors
    assert list(errors) == [field]
    assert message in errors[field][0]


def test_all_errors_are_reported_at_once() -> None:
    assert set(validate("", "", "Europe/Atlantis").errors) == {"date", "time", "zone"}


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Sao_Paulo"])
@pytest.mark.parametrize(
    "at",
    [
        NOW,
        datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC),
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC),  # 02:30 in Berlin, an hour before the clocks go back
        datetime(2026, 10, 25, 1, 30, tzinfo=UTC),  # 02:30 again
    ],
)
def test_an_instant_survives_being_split_and_resolved(at: datetime, zone: str) -> None:
    with timezone.override(zone):
        assert resolve(**split_instant(at)).at == at


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ({"preset": "10m"}, {"date": "2026-03-01", "time": "12:10", "zone": "UTC"}),
        ({"preset": "1h", "zone": "Asia/Tokyo"}, {"date": "2026-03-01", "time": "22:00", "zone": "Asia/Tokyo"}),
        ({"preset": "tomorrow"}, {"date": "2026-03-02", "time": "09:00", "zone": "UTC"}),
        # In Auckland it is Monday already.
        ({"preset": "monday", "zone": "Europe/Berlin"}, {"date": "2026-03-02", "time": "09:00", "zone": "Europe/Berlin"}),
        ({"preset": "monday", "zone": "Pacific/Auckland"}, {"date": "2026-03-09", "time": "09:00", "zone": "Pacific/Auckland"}),
        ({"preset": "in", "amount": "90", "unit": "minutes"}, {"date": "2026-03-01", "time": "13:30", "zone": "UTC"}),
        ({"preset": "in", "amount": "2", "unit": "days", "zone": "Mars"}, {"date": "2026-03-03", "time": "12:00", "zone": "UTC"}),
    ],
)  # fmt: skip
def test_a_preset_or_a_distance_becomes_a_local_time(typed: dict[str, str], expected: dict[str, str]) -> None:
    form = RelativeTimeForm(typed, now=NOW)
    assert form.is_asked
    assert form.is_valid(), form.errors
    assert form.fields_of_moment == expected


@pytest.mark.parametrize("amount", ["", "0", "-5", "1.5", "soon", "10000"])
def test_a_distance_is_a_whole_number(amount: str) -> None:
    form = RelativeTimeForm({"preset": "in", "amount": amount, "unit": "hours"}, now=NOW)
    assert form.errors == {"amount": ["Enter a whole number from 1 to 9999."]}


def test_a_preset_across_a_change_of_clocks_keeps_its_local_time() -> None:
    now = datetime(2026, 3, 28, 12, tzinfo=UTC)  # the clocks go forward in the night
    form = RelativeTimeForm({"preset": "tomorrow", "zone": "Europe/Berlin"}, now=now)
    assert form.is_valid()
    assert form.moment == datetime(2026, 3, 29, 7, tzinfo=UTC)


def test_utc_is_the_first_zone_and_every_zone_can_be_chosen() -> None:
    names = [name for region in list_time_zones().values() for name in region]
    assert names[0] == "UTC"
    assert {"Europe/Berlin", "Asia/Tokyo"} <= set(names)
    assert len(names) == len(set(names))
    assert {"localtime", "Factory"}.isdisjoint(names)

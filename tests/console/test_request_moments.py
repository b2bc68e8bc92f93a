"""Which instant a date, a time and a zone are: also where clocks are set forward or back."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from eventservice.console.calls.local_time import BadMoment, Moment, chosen_of, moment_of, zones

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def resolved(date: str, time: str, zone: str = "Europe/Berlin") -> Moment:
    return moment_of({"date": date, "time": time, "zone": zone}, NOW)


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
def test_it_is_the_instant_that_is_meant_there(date: str, time: str, zone: str, expected: datetime) -> None:
    assert resolved(date, time, zone) == Moment(expected)


def test_a_time_that_a_day_leaves_out_is_refused_with_what_it_is_called() -> None:
    with pytest.raises(BadMoment, match=r"02:30 does not exist .* Europe/Berlin.* called 03:30") as wrong:
        resolved("2026-03-29", "02:30")
    assert list(wrong.value.faults) == ["time"]
    assert resolved("2026-03-29", "03:30").at == datetime(2026, 3, 29, 1, 30, tzinfo=UTC)


def test_of_a_time_that_comes_twice_the_first_is_taken_and_said() -> None:
    moment = resolved("2026-10-25", "02:30")
    assert moment.at == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert "00:30Z; the second is 01:30Z" in moment.note


@pytest.mark.parametrize(
    ("date", "time", "zone", "field", "said"),
    [
        ("2026-03-01", "11:58", "UTC", "date", "past"),
        ("", "11:58", "UTC", "date", "Choose a date"),
        ("01.03.2026", "11:58", "UTC", "date", "Choose a date"),
        ("2026-03-02", "", "UTC", "time", "Choose a time"),
        ("2026-03-02", "12:00+01:00", "UTC", "time", "Choose a time"),
        ("2026-03-02", "25:00", "UTC", "time", "Choose a time"),
        ("2026-03-02", "12:00", "Europe/Atlantis", "zone", "from the list"),
        ("2026-03-02", "12:00", "../etc/passwd", "zone", "from the list"),
        ("9999-12-31", "23:59", "America/New_York", "date", "beyond all calendars"),
        ("2036-03-02", "12:00", "UTC", "date", "within ten years from now"),
    ],
)
def test_what_is_no_moment_is_refused_at_its_field(
    date: str, time: str, zone: str, field: str, said: str
) -> None:
    with pytest.raises(BadMoment, match=said) as wrong:
        resolved(date, time, zone)
    assert list(wrong.value.faults) == [field]


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(BadMoment) as wrong:
        resolved("", "", "Europe/Atlantis")
    assert set(wrong.value.faults) == {"date", "time", "zone"}


@pytest.mark.parametrize("at", [NOW, datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)])
def test_what_is_shown_of_a_moment_is_that_moment(at: datetime) -> None:
    assert moment_of(chosen_of(at), NOW).at == at


def test_utc_is_the_first_zone_and_all_can_be_chosen() -> None:
    names = [name for region in zones().values() for name in region]
    assert names[0] == "UTC"
    assert {"Europe/Berlin", "Asia/Tokyo"} <= set(names)
    assert len(names) == len(set(names))
    assert {"localtime", "Factory"}.isdisjoint(names)

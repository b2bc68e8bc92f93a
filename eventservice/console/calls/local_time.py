"""A date, a time and a zone, as a person chooses them: which instant that is, and what is odd about it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from orchestration.outcome_rules import MAX_DELAY

# A time is chosen to the minute: the present minute is not past.
PAST = timedelta(minutes=1)
# Names that say nothing to a person.
NO_ZONES = frozenset({"Factory", "localtime"})


class BadMoment(ValueError):
    """`faults`: what is wrong, by the field to change: date, time or zone."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        super().__init__(" ".join(faults.values()))
        self.faults = faults


class Moment(NamedTuple):
    at: datetime
    note: str = ""  # what had to be decided for whoever chose it


@cache
def zones() -> dict[str, list[str]]:
    """By region, for a list to choose from. UTC is always there."""
    by_region: dict[str, list[str]] = {"": ["UTC"]}
    for name in sorted(available_timezones() - NO_ZONES - {"UTC"}):
        region = name.split("/")[0] if "/" in name else "Other names"
        by_region.setdefault(region, []).append(name)
    by_region["Other names"] = by_region.pop("Other names", [])
    return by_region


def moment_of(chosen: Mapping[str, str], now: datetime) -> Moment:
    """The instant of `date`, `time` and `zone`; raises BadMoment. It must be neither past nor too far away."""
    faults: dict[str, str] = {}
    day, clock = _date(chosen.get("date", "")), _time(chosen.get("time", ""))
    zone = _zone(chosen.get("zone", ""))
    if day is None:
        faults["date"] = "Choose a date, such as 2026-03-01."
    if clock is None:
        faults["time"] = "Choose a time, such as 14:30."
    if zone is None:
        faults["zone"] = "Choose a time zone from the list."
    if day is None or clock is None or zone is None:
        raise BadMoment(faults)
    moment = _resolve(datetime.combine(day, clock, tzinfo=zone), chosen.get("zone", "") or "UTC")
    if moment.at < now - PAST:
        raise BadMoment({"date": "That is past: choose a later time, or Execute now."})
    if moment.at > now + MAX_DELAY:
        raise BadMoment({"date": "The time must be within ten years from now."})
    return moment


def chosen_of(moment: datetime) -> dict[str, str]:
    """The other way round, in UTC."""
    at = moment.astimezone(UTC).replace(tzinfo=None)
    precision = "minutes" if not at.second and not at.microsecond else "seconds"
    return {
        "date": at.date().isoformat(),
        "time": at.time().isoformat(timespec=precision),
        "zone": "UTC",
    }


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        return None


def _time(text: str) -> time | None:
    try:
        clock = time.fromisoformat(text.strip())
    except ValueError:
        return None
    return clock if clock.tzinfo is None else None


def _zone(name: str) -> tzinfo | None:
    if name in ("", "UTC"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _resolve(local: datetime, zone: str) -> Moment:
    """Where clocks are set forward a local time is missing, and where they are set back it is there twice."""
    try:
        first, second = (local.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
    except OverflowError:
        raise BadMoment({"date": "That is beyond all calendars."}) from None
    if first == second:
        return Moment(first)
    said = local.strftime("%H:%M")
    if first.astimezone(local.tzinfo).replace(tzinfo=None) != local.replace(tzinfo=None):
        # Read with the offset from before the gap, the time falls behind it; with the one from after, before it.
        after = first.astimezone(local.tzinfo).strftime("%H:%M")
        raise BadMoment(
            {
                "time": f"{said} does not exist on that day in {zone}: clocks are set forward over it."
                f" The same moment is called {after} there; choose that, or another time."
            }
        )
    return Moment(
        first,
        f"{said} comes twice on that day in {zone}, for clocks are set back. The first was taken,"
        f" {first:%H:%M}Z; the second is {second:%H:%M}Z.",
    )

"""A date, a time and a time zone as an operator chooses them, and the instant that they mean."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any, NamedTuple

from django import forms
from django.utils import timezone
from django.utils.safestring import SafeString
from pydantic import TypeAdapter, ValidationError

from eventservice.api.formats import format_instant
from eventservice.api.schema.base import list_errors
from eventservice.api.schema.types import DueTime
from eventservice.console.base.time_zone import find_zone, get_zone_name, render_zone_options, to_active_zone

_DUE_TIME: TypeAdapter[datetime] = TypeAdapter(DueTime)

# Times are chosen to the minute, so the current minute is not in the past.
PAST_TOLERANCE = timedelta(minutes=1)


class ResolvedTime(NamedTuple):
    """The instant of a local time. `note` says what was assumed."""

    at: datetime
    note: str = ""


class LocalTimeForm(forms.Form):
    """Validates a local time that is neither past nor too far away. Once valid, `resolved` is its instant."""

    date = forms.DateField(
        input_formats=["%Y-%m-%d"],
        error_messages=dict.fromkeys(("required", "invalid"), "Choose a date, such as 2026-03-01."),
    )
    time = forms.TimeField(
        input_formats=["%H:%M", "%H:%M:%S", "%H:%M:%S.%f"],
        error_messages=dict.fromkeys(("required", "invalid"), "Choose a time, such as 14:30."),
    )
    zone = forms.CharField(required=False)

    def __init__(self, *args: Any, now: datetime, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.now = now
        self.resolved: ResolvedTime | None = None

    @classmethod
    def from_instant(cls, moment: datetime, now: datetime) -> LocalTimeForm:
        """Return an unbound form that shows the instant in the active zone."""
        form = cls(initial=split_instant(moment), now=now)
        form.resolved = ResolvedTime(moment)
        return form

    @property
    def presets(self) -> list[tuple[str, str]]:
        return [(name, preset.label) for name, preset in PRESETS.items()]

    @property
    def units(self) -> list[str]:
        return list(UNITS)

    @property
    def zone_options(self) -> SafeString:
        return render_zone_options(str(self["zone"].value() or get_zone_name()))

    def clean_zone(self) -> tzinfo:
        zone = find_zone(self.cleaned_data["zone"] or "UTC")
        if zone is None:
            raise forms.ValidationError("Choose a time zone from the list.")
        return zone

    def clean(self) -> None:
        cleaned = self.cleaned_data
        if self.errors:
            return
        resolved = _resolve(cleaned["date"], cleaned["time"], cleaned["zone"])
        if resolved.at < self.now - PAST_TOLERANCE:
            raise forms.ValidationError({"date": "This time is in the past. Choose a later one."})
        if rule := find_due_time_error(resolved.at):
            raise forms.ValidationError({"date": f"The time {rule}."})
        self.resolved = resolved


# --- times by a click ---------------------------------------------------------------------------------------------


UNITS = {"minutes": timedelta(minutes=1), "hours": timedelta(hours=1), "days": timedelta(days=1)}
DAY_BEGINS = time(9)


class Preset(NamedTuple):
    label: str
    compute: Callable[[datetime], datetime]  # from the local time now


PRESETS = {
    "10m": Preset("In 10 minutes", lambda now: now + timedelta(minutes=10)),
    "1h": Preset("In 1 hour", lambda now: now + timedelta(hours=1)),
    "tomorrow": Preset("Tomorrow 09:00", lambda now: _begin_day(now, days=1)),
    "monday": Preset("Monday 09:00", lambda now: _begin_day(now, days=7 - now.weekday())),
}


class RelativeTimeForm(forms.Form):
    """A time that is chosen by a preset, or by its distance from now. Once valid, `moment` is its instant."""

    amount = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=9999,
        error_messages=dict.fromkeys(
            ("invalid", "min_value", "max_value"), "Enter a whole number from 1 to 9999."
        ),
    )
    unit = forms.ChoiceField(required=False, choices=[(unit, unit) for unit in UNITS])
    preset = forms.CharField(required=False)
    zone = forms.CharField(required=False)

    def __init__(self, *args: Any, now: datetime, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.now = now
        self.moment: datetime | None = None

    @property
    def is_asked(self) -> bool:
        """Whether one of the buttons was pressed."""
        return bool(self.data.get("preset"))

    @property
    def chosen_zone(self) -> tzinfo:
        return find_zone(self.cleaned_data.get("zone", "")) or timezone.get_current_timezone()

    def clean(self) -> None:
        if self.errors:
            return
        preset = PRESETS.get(self.cleaned_data["preset"])
        if preset is not None:
            # A local time that does not exist, or exists twice, has an instant all the same.
            self.moment = preset.compute(self.now.astimezone(self.chosen_zone)).astimezone(UTC)
        elif amount := self.cleaned_data["amount"]:
            self.moment = self.now + amount * UNITS[self.cleaned_data["unit"] or "minutes"]
        else:
            raise forms.ValidationError({"amount": "Enter a whole number from 1 to 9999."})

    @property
    def fields_of_moment(self) -> dict[str, str]:
        """Return the chosen time as the fields of LocalTimeForm."""
        if self.moment is None:
            raise ValueError("the form is not valid")
        return split_instant(self.moment, self.chosen_zone)


def _begin_day(now: datetime, *, days: int) -> datetime:
    return datetime.combine(now.date() + timedelta(days=days), DAY_BEGINS, tzinfo=now.tzinfo)


# --- instants -----------------------------------------------------------------------------------------------------


def find_due_time_error(moment: datetime) -> str | None:
    """Return the rule of the API that a due time breaks, or None."""
    try:
        _DUE_TIME.validate_python(format_instant(moment))
    except ValidationError as failure:
        return list_errors(failure)[0].detail
    return None


def split_instant(moment: datetime, zone: tzinfo | None = None) -> dict[str, str]:
    """Return the date, the time and the zone of an instant, as the form's fields show them.

    The zone is the active one unless another is given, or UTC for a local time that occurs a second time because clocks
    go back.
    """
    at = to_active_zone(moment) if zone is None else moment.astimezone(zone)
    if at.fold:
        at, zone = moment.astimezone(UTC), UTC
    precision = "minutes" if not at.second and not at.microsecond else "seconds"
    return {
        "date": at.date().isoformat(),
        "time": at.time().isoformat(timespec=precision),
        "zone": get_zone_name(zone),
    }


def _resolve(day: date, clock: time, zone: tzinfo) -> ResolvedTime:
    """Return the instant. Some local times are skipped when clocks go forward, and repeated when they go back."""
    local = datetime.combine(day, clock, tzinfo=zone)
    try:
        first, second = (local.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
    except OverflowError:
        raise forms.ValidationError({"date": "This date is not supported."}) from None
    if first == second:
        return ResolvedTime(first)
    text = local.strftime("%H:%M")
    if first.astimezone(zone).replace(tzinfo=None) != local.replace(tzinfo=None):
        # With the offset from before the gap, a skipped time falls behind the gap.
        next_valid = first.astimezone(zone).strftime("%H:%M")
        message = (
            f"{text} does not exist on this day in {zone}, because clocks go forward."
            f" Choose {next_valid}, which is the same moment, or another time."
        )
        raise forms.ValidationError({"time": message})
    return ResolvedTime(
        first,
        f"{text} occurs twice on this day in {zone}, because clocks go back."
        f" The first occurrence ({first:%H:%M} UTC) is used; the second is at {second:%H:%M} UTC.",
    )

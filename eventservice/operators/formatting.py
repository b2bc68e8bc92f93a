"""How times, durations, counts and shares are written for operators, in the console, the admin and the commands."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from eventservice.db.bounded_count import format_capped

if TYPE_CHECKING:
    from outbox.publishers.webhook.recovery import RetriedDeliveries

NOTHING = "–"
UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def format_instant(moment: datetime | None) -> str:
    """Return an instant in UTC, to the millisecond."""
    if moment is None:
        return NOTHING
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def format_second(moment: datetime) -> str:
    """Return an instant in UTC, to the second."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def format_ago(moment: datetime, now: datetime) -> str:
    """Return how long ago an instant was: "2 m ago", or "now"."""
    return format_distance(min(0.0, (moment - now).total_seconds()))


def format_clock(moment: datetime, now: datetime) -> str:
    """Return an instant in UTC, to the second, without its date if that is today's."""
    is_today = moment.astimezone(UTC).date() == now.astimezone(UTC).date()
    return f"{moment.astimezone(UTC):%H:%M:%S} UTC" if is_today else format_second(moment)


def format_refusals(count: int, last_at: datetime, now: datetime) -> str:
    """Return how often something was refused, and when it was the last time."""
    return f"{count:,}, last {format_clock(last_at, now)}"


def format_distance(seconds: float) -> str:
    """Return how far an instant is from now: "2 m ago" for a negative number of seconds, otherwise "in 2 m"."""
    if abs(seconds) < 1:
        return "now"
    text = format_seconds(abs(seconds))
    return f"{text} ago" if seconds < 0 else f"in {text}"


def format_since(moment: datetime, now: datetime) -> str:
    """Return since when something has been so, and for how long: "since 2026-03-01 12:00:00 UTC (2 m)"."""
    length = format_duration(max(timedelta(), now - moment))
    return f"since {moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({length})"


def format_seconds(seconds: float) -> str:
    """Return whole seconds in at most two units, such as "2 h 10 m"."""
    left, parts = int(seconds), []
    for size, name in UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {name}")
        if len(parts) == 2 or (parts and not count) or (parts and name == "m"):
            break
    return " ".join(parts) or "0 s"


def format_duration(value: timedelta | float | None) -> str:
    """Return a duration, given as a timedelta or in seconds, as precisely as it matters."""
    if value is None:
        return NOTHING
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else format_seconds(seconds)


def format_milliseconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    return format_duration(value / 1000) if value >= 1000 else f"{value:.{1 if value < 10 else 0}f} ms"


def format_lateness(milliseconds: float | None) -> str:
    """Return a delay as the histograms know it: infinite means longer than their last bound."""
    if milliseconds is None:
        return NOTHING
    return "more than 1 m" if math.isinf(milliseconds) else format_milliseconds(milliseconds)


def format_period(length: timedelta) -> str:
    """Return the length of a range as it follows "the last": "hour", "15 minutes", "7 days"."""
    minutes = length // timedelta(minutes=1)
    if minutes < 60:
        return "minute" if minutes == 1 else f"{minutes} minutes"
    hours = minutes // 60
    return "hour" if hours == 1 else f"{hours} hours" if hours <= 24 else f"{hours // 24} days"


def format_count(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun, which takes an s in the plural if no other plural is given."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def format_retried_deliveries(retried: RetriedDeliveries) -> str:
    """Return what a retry of an endpoint's pending deliveries has done, and what became of the others."""
    if retried.due:
        text = f"{retried.due:,} {'delivery is' if retried.due == 1 else 'deliveries are'} due now"
        if retried.others == 1:
            return f"{text}; 1 other is already due or waits behind earlier events of its call."
        if retried.others:
            others = format_capped(retried.others)
            return f"{text}; {others} others are already due or wait behind earlier events of their call."
        return f"{text}."
    if retried.others:
        return "Nothing to retry: all pending deliveries are due within a minute, or wait behind such."
    if retried.exhausted:
        were = "delivery was" if retried.exhausted == 1 else "deliveries were"
        return (
            f"Nothing is pending. {retried.exhausted:,} {were} given up: use Resend failed on the endpoint's page, or "
            "`manage.py webhook retry --failed ID`."
        )
    return "Nothing is pending."


def format_short_number(value: float) -> str:
    """Return a round number for an axis, such as "20k"."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def format_share(share: float) -> str:
    """Return a percentage that is 0 % or 100 % only when it is exactly that."""
    percent = 100 * share
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{percent:.1f}".removesuffix(".0") + " %"


def format_size(count: int | None) -> str:
    """Return a number of bytes in binary units: 1 KiB has 1,024 bytes, as in the limits that the settings have."""
    if count is None:
        return NOTHING
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} GiB"

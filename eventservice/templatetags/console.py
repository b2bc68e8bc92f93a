"""How the console says things: times, durations, states, ids, counts."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from django import template
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString

from eventservice.db.bounded_count import format_capped
from eventservice.db.now import db_now
from eventservice.tenants.directory import get_profile

register = template.Library()

UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


@register.simple_tag
def icon(name: str, label: str = "") -> SafeString:
    """From static/console/icons.svg. One without a label is decoration."""
    href = f"{static('console/icons.svg')}#{name}"
    if label:
        return format_html('<svg class="icon" role="img" aria-label="{}"><use href="{}"/></svg>', label, href)
    return format_html('<svg class="icon" aria-hidden="true"><use href="{}"/></svg>', href)


@register.filter
def relative(moment: datetime | None, now: datetime | None = None) -> SafeString | str:
    """Relative, with the absolute time on hover; a script keeps it true. A list gives the present time itself:
    otherwise each time in it would ask the database.
    """
    if moment is None:
        return "–"
    return format_html(
        '<time data-relative datetime="{}" title="{}">{}</time>',
        moment.astimezone(UTC).isoformat(timespec="milliseconds"),
        absolute(moment),
        format_relative((moment - (now or db_now())).total_seconds()),
    )


@register.filter
def absolute(moment: datetime | None) -> str:
    """To the millisecond, in UTC."""
    if moment is None:
        return "–"
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def format_relative(seconds: float) -> str:
    if abs(seconds) < 1:
        return "now"
    text = format_seconds(abs(seconds))
    return f"{text} ago" if seconds < 0 else f"in {text}"


def format_seconds(seconds: float) -> str:
    """Two units at most: 2 h 10 m."""
    left, parts = int(seconds), []
    for size, name in UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {name}")
        if len(parts) == 2 or (parts and not count) or (parts and name == "m"):
            break
    return " ".join(parts) or "0 s"


@register.filter
def duration(value: timedelta | float | None) -> str:
    """Of seconds or a timedelta."""
    if value is None:
        return "–"
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else format_seconds(seconds)


@register.filter
def milliseconds(value: float | None) -> str:
    if value is None:
        return "–"
    return duration(value / 1000) if value >= 1000 else f"{value:.{1 if value < 10 else 0}f} ms"


PHASES = {"dnsMs": "DNS", "connectMs": "connect", "tlsMs": "TLS", "firstByteMs": "first byte"}


@register.filter
def time_spent(attempt: Any) -> str:
    """What an attempt did and when it ended, as far as that is known: "connect 3.0 ms · first byte 40 ms · total 42 ms"."""
    parts = [
        f"{name} {milliseconds(attempt.phases[key])}"
        for key, name in PHASES.items()
        if key in (attempt.phases or {})
    ]
    total = milliseconds(attempt.latency_ms)
    return " · ".join([*parts, f"total {total}"]) if parts else total


@register.filter
def capped(count: int | None) -> str:
    return "–" if count is None else format_capped(count)


@register.filter
def grouped(number: int) -> str:
    return f"{number:,}"


@register.filter
def size(count: int | None) -> str:
    if count is None:
        return "–"
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.1f} kB" if count < 1024**2 else f"{count / 1024**2:.1f} MB"


@register.filter
def pill(status: str) -> SafeString:
    return format_html('<span class="pill {}">{}</span>', status.lower(), status)


@register.filter
def short(identifier: Any) -> SafeString:
    """The end of an id: a UUIDv7 begins with its time, which neighbours share."""
    text = str(identifier)
    return format_html('<code title="{}">…{}</code>', text, text[-8:])


@register.inclusion_tag("console/_copy_button.html")
def copy(text: Any, label: str = "Copy") -> dict[str, Any]:
    return {"text": text, "label": label}


@register.filter
def tenant_name(tenant_id: Any) -> str:
    return "–" if tenant_id is None else str(get_profile(tenant_id).name)


@register.filter
def pretty(value: Any) -> str:
    """JSON as people read it. A text that is JSON is shown as that; any other as it is."""
    try:
        read = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return str(value)
    return json.dumps(read, indent=2, ensure_ascii=False)

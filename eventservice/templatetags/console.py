"""Template tags and filters of the console: icons, times, durations, states, ids, counts."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from django import template
from django.templatetags.static import static
from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe

from eventservice.console.base.time_zone import format_clock, format_instant
from eventservice.db.bounded_count import format_capped
from eventservice.db.now import db_now
from eventservice.operators.error_kinds import get_error_name
from eventservice.operators.formatting import (
    NOTHING,
    format_distance,
    format_duration,
    format_milliseconds,
    format_size,
)
from eventservice.tenants.directory import get_profile

register = template.Library()
register.filter("clock", format_clock)
register.filter("duration", format_duration)
register.filter("milliseconds", format_milliseconds)
register.filter("size", format_size)

PHASES = {"dnsMs": "DNS", "connectMs": "connect", "tlsMs": "TLS", "firstByteMs": "first byte"}
COMMAND = re.compile(r"`([^`]+)`")


# A list of calls has more than a hundred icons of a few kinds.
@register.simple_tag
@lru_cache(maxsize=256)
def icon(name: str, label: str = "") -> SafeString:
    """Render an icon of static/console/icons.svg; without a label it is decoration."""
    href = f"{static('console/icons.svg')}#{name}"
    if label:
        return format_html('<svg class="icon" role="img" aria-label="{}"><use href="{}"/></svg>', label, href)
    return format_html('<svg class="icon" aria-hidden="true"><use href="{}"/></svg>', href)


@register.filter
def relative(moment: datetime | None, now: datetime | None = None) -> SafeString | str:
    """Render a relative time with the absolute one on hover; a script keeps it current.

    Pass `now` in a list: without it, each time in the list reads the database's clock.
    """
    if moment is None:
        return NOTHING
    return format_html(
        '<time data-relative datetime="{}" title="{}">{}</time>',
        moment.astimezone(UTC).isoformat(timespec="milliseconds"),
        format_instant(moment),
        format_distance((moment - (now or db_now())).total_seconds()),
    )


@register.filter
def absolute(moment: datetime | None, precision: str = "milliseconds") -> str:
    """Return a time in the user's zone, with UTC beside it."""
    return format_instant(moment, milliseconds=precision == "milliseconds")


@register.filter
def with_commands(text: str) -> SafeString:
    """Render a text whose commands stand between backticks."""
    return mark_safe(COMMAND.sub(r"<code>\1</code>", conditional_escape(text)))  # noqa: S308 (escaped before)


@register.filter
def time_spent(attempt: Any) -> str:
    """Return the phases of an attempt as far as they are known: "connect 3.0 ms · first byte 40 ms · total 42 ms"."""
    parts = [
        f"{name} {format_milliseconds(attempt.phases[key])}"
        for key, name in PHASES.items()
        if key in (attempt.phases or {})
    ]
    total = format_milliseconds(attempt.latency_ms)
    return " · ".join([*parts, f"total {total}"]) if parts else total


@register.filter
def capped(count: int | None) -> str:
    return NOTHING if count is None else format_capped(count)


@register.filter
def grouped(number: int) -> str:
    return f"{number:,}"


@register.filter
def pill(status: str) -> SafeString:
    return format_html('<span class="pill {}">{}</span>', status.lower(), status)


@register.filter
def error_name(kind: str | None) -> str:
    return get_error_name(kind)


@register.filter
def short(identifier: Any) -> SafeString:
    """Render the end of an id: UUIDv7 values begin with a time that neighbors share."""
    text = str(identifier)
    return format_html('<code title="{}">…{}</code>', text, text[-8:])


@register.inclusion_tag("console/_copy_button.html")
def copy(text: Any, label: str = "Copy") -> dict[str, Any]:
    return {"text": text, "label": label}


@register.filter
def tenant_name(tenant_id: Any) -> str:
    return NOTHING if tenant_id is None else str(get_profile(tenant_id).name)


@register.filter
def pretty(value: Any) -> str:
    """Return JSON, or a string that contains JSON, indented; return any other string as it is."""
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return str(value)
    return json.dumps(parsed, indent=2, ensure_ascii=False)

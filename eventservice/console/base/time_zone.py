"""The time zone of the operator's console: chosen by the user, or else that of the browser, or else UTC.

Both are cookies. `console.js` stores the browser's zone. The base view activates the zone for each request, so Django's own
template filters and forms use it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from functools import cache, lru_cache
from urllib.parse import unquote
from zoneinfo import ZoneInfo, available_timezones

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from eventservice.operators.formatting import NOTHING

CHOSEN_COOKIE = "time_zone"
BROWSER_COOKIE = "browser_time_zone"
COOKIE_SECONDS = 365 * 24 * 3600
# Names that mean nothing to a person.
HIDDEN_ZONES = frozenset({"Factory", "localtime"})


def get_user_zone(request: HttpRequest) -> tzinfo:
    """Return the zone in which this user reads times."""
    return find_chosen_zone(request) or find_browser_zone(request) or UTC


def find_chosen_zone(request: HttpRequest) -> tzinfo | None:
    return _find_cookie_zone(request, CHOSEN_COOKIE)


def find_browser_zone(request: HttpRequest) -> tzinfo | None:
    return _find_cookie_zone(request, BROWSER_COOKIE)


def _find_cookie_zone(request: HttpRequest, cookie: str) -> tzinfo | None:
    return find_zone(unquote(request.COOKIES.get(cookie, "")))


def find_zone(name: str) -> tzinfo | None:
    """Return the zone of this name, such as "Europe/Berlin", or None if there is none."""
    if name in ("UTC", "Etc/UTC"):
        return UTC
    try:
        return ZoneInfo(name) if name else None
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        return None


def get_zone_name(zone: tzinfo | None = None) -> str:
    """Return the name of a zone, or of the active one."""
    found = timezone.get_current_timezone() if zone is None else zone
    return "UTC" if found is UTC else str(found)


@cache
def list_time_zones() -> Mapping[str, list[str]]:
    """Return the names of all time zones by region. UTC comes first, without a region."""
    by_region: dict[str, list[str]] = {"": ["UTC"]}
    for name in sorted(available_timezones() - HIDDEN_ZONES - {"UTC"}):
        region = name.split("/")[0] if "/" in name else "Other names"
        by_region.setdefault(region, []).append(name)
    by_region["Other names"] = by_region.pop("Other names", [])
    return by_region


@lru_cache(maxsize=16)
def render_zone_options(chosen: str) -> SafeString:
    """Return the options of the time zone select. They are cached: Django's templates take 3 ms for the 600 of them."""
    return format_html_join(
        "", "{}", ((_render_zone_group(*group, chosen),) for group in list_time_zones().items())
    )


def _render_zone_group(region: str, names: list[str], chosen: str) -> SafeString:
    options = format_html_join(
        "", "<option{}>{}</option>", ((" selected" if name == chosen else "", name) for name in names)
    )
    return format_html('<optgroup label="{}">{}</optgroup>', region, options) if region else options


def store_chosen_zone(response: HttpResponse, name: str) -> None:
    """Store the user's choice in the browser. An empty name means the browser's zone."""
    if name:
        response.set_cookie(CHOSEN_COOKIE, name, max_age=COOKIE_SECONDS, httponly=True, samesite="Lax")
    else:
        response.delete_cookie(CHOSEN_COOKIE, samesite="Lax")


# --- formatting -----------------------------------------------------------------------------------------------------


def format_instant(moment: datetime | None, *, milliseconds: bool = True) -> str:
    """Return an instant in the active zone with UTC beside it: "2026-03-01 13:00:00.000 CET (12:00:00 UTC)"."""
    if moment is None:
        return NOTHING
    local, utc = to_active_zone(moment), moment.astimezone(UTC)
    fraction = f".{local.microsecond // 1000:03}" if milliseconds else ""
    text = f"{local:%Y-%m-%d %H:%M:%S}{fraction} {_get_abbreviation(local)}"
    if not local.utcoffset() and local.tzname() == "UTC":
        return text
    return f"{text} ({utc:{'%H:%M:%S' if utc.date() == local.date() else '%Y-%m-%d %H:%M:%S'}} UTC)"


def to_active_zone(moment: datetime) -> datetime:
    return moment.astimezone(timezone.get_current_timezone())


def format_clock(moment: datetime, now: datetime) -> str:
    """Return an instant in the active zone as briefly as a list needs it: the time, and the day unless that is today."""
    local, today = to_active_zone(moment), to_active_zone(now).date()
    if local.date() == today:
        return f"{local:%H:%M:%S}"
    day = f"{local:%b} {local.day}"
    return f"{day}, {local:%H:%M}" if local.year == today.year else f"{day}, {local.year}"


def _get_abbreviation(local: datetime) -> str:
    """Return "CET"; some zones have no letters but an offset, such as "-03"."""
    name = local.tzname() or ""
    return f"UTC{name}" if name[:1] in "+-" else name

"""Bar charts as SVG, without a library: horizontal bars with the range of the rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 760
LABEL_WIDTH = 190
VALUE_WIDTH = 120
BAR_HEIGHT = 16
GROUP_GAP = 12
TOP = 44
LEGEND_HEIGHT = 24
COLORS = ("#1f6f8b", "#e0a030", "#7a5195")
OUR_COLORS = ("#b3402a", "#e58a6f", "#7d2b1c")
TEXT_STYLE = "font-family: sans-serif; font-size: 12px; fill: #222"


@dataclass(frozen=True)
class Value:
    """The median of a figure over the rounds, and its range."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Group:
    """The bars of one candidate: one for each series, or None where it was not measured."""

    label: str
    values: Sequence[Value | None]
    ours: bool = False


def format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def compute_length(value: float, largest: float, smallest: float, logarithmic: bool) -> float:
    """Return the length of a bar as a share of the longest. The logarithmic scale begins a decade below the smallest value."""
    if value <= 0 or largest <= 0:
        return 0.0
    if not logarithmic:
        return value / largest
    start = math.log10(smallest) - 1
    return (math.log10(value) - start) / (math.log10(largest) - start)


def render_bars(
    title: str, unit: str, series: Sequence[str], groups: Sequence[Group], logarithmic: bool = False
) -> str:
    """Return an SVG document. Lines over the bars show the range of the rounds."""
    values = [value for group in groups for value in group.values if value is not None]
    positive = [value.low for value in values if value.low > 0]
    largest = max((value.high for value in values), default=1.0)
    smallest = min(positive, default=1.0)
    legend = LEGEND_HEIGHT if len(series) > 1 else 0
    group_height = BAR_HEIGHT * len(series) + GROUP_GAP
    height = TOP + legend + group_height * len(groups) + 8
    scale = WIDTH - LABEL_WIDTH - VALUE_WIDTH

    def locate(value: float) -> float:
        return LABEL_WIDTH + scale * compute_length(value, largest, smallest, logarithmic)

    heading = f"{title} ({unit}{', logarithmic' if logarithmic else ''})"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(heading)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        _render_text(16, 24, heading, "font-weight: bold; font-size: 14px"),
    ]
    if legend:
        parts += _render_legend(series)
    top = TOP + legend
    for group in groups:
        middle = top + BAR_HEIGHT * len(series) / 2 + 4
        parts.append(
            _render_text(
                LABEL_WIDTH - 8, middle, group.label, f"text-anchor: end;{'font-weight: bold' * group.ours}"
            )
        )
        colors = OUR_COLORS if group.ours else COLORS
        for number, value in enumerate(group.values):
            parts += _render_bar(top + number * BAR_HEIGHT, value, colors[number % len(colors)], locate)
        top += group_height
    return "\n".join([*parts, "</svg>"]) + "\n"


def _render_legend(series: Sequence[str]) -> list[str]:
    parts, left = [], LABEL_WIDTH
    for number, name in enumerate(series):
        for shift, colors in ((0, OUR_COLORS), (12, COLORS)):
            parts.append(
                f'<rect x="{left + shift}" y="{TOP - 8}" width="12" height="12" fill="{colors[number % len(colors)]}"/>'
            )
        parts.append(_render_text(left + 30, TOP + 3, name))
        left += 50 + 8 * len(name)
    return parts


def _render_bar(top: float, value: Value | None, color: str, locate: Callable[[float], float]) -> list[str]:
    middle = top + BAR_HEIGHT / 2
    if value is None:
        return [_render_text(LABEL_WIDTH + 4, middle + 4, "–")]
    end, low, high = locate(value.median), locate(value.low), locate(value.high)
    bar = f'<rect x="{LABEL_WIDTH}" y="{top + 1:g}" width="{max(0.0, end - LABEL_WIDTH):.1f}" height="{BAR_HEIGHT - 2}" fill="{color}"/>'
    text = _render_text(max(end, high) + 6, middle + 4, format_number(value.median))
    if value.low == value.high:
        return [bar, text]
    line = f'<path d="M{low:.1f} {middle:g}H{high:.1f}" stroke="#222" stroke-width="1.5"/>'
    return [bar, line, text]


def _render_text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" style="{TEXT_STYLE};{style}">{escape(text)}</text>'

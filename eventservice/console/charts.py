"""The geometry of the charts, which templates draw as SVG.

Horizontal positions are percentages, so that a chart fits any width without scaling its text. Vertical ones are pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlencode

from eventservice.console.base.time_zone import to_active_zone
from eventservice.operators.formatting import (
    format_lateness,
    format_milliseconds,
    format_period,
    format_share,
    format_short_number,
)
from orchestration.statistics.chart_data import ChartSlice, ChartSpan, Outcomes

HEIGHT = 170
# The minimum height of a bar in pixels, so that a single call is visible and can be clicked.
MIN_HEIGHT = 2
MAX_GRID_LINES = 4
# The share of a slice's width that its bar takes.
BAR_SHARE = 0.82

DAY = timedelta(days=1)
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (local)

# Bars count ended calls and link to them: lists of current periods would also have others.
ENDED_STATUSES = urlencode([("status", status) for status in ("Succeeded", "Failed", "Canceled")])

PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
MIN_LATENESS_MS, MIN_TOP_LATENESS_MS, MAX_LATENESS_MS = 1.0, 100.0, 100_000.0

LinkToCalls = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Tick:
    """A grid line with its text, or a text below the chart."""

    at: str
    text: str


@dataclass(frozen=True, slots=True)
class Segment:
    kind: str
    y: str
    height: str
    title: str
    href: str


@dataclass(frozen=True, slots=True)
class Column:
    x: str
    width: str
    bar_x: str
    bar_width: str
    when: str
    title: str
    href: str
    segments: list[Segment]
    values: list[str]  # its row of the table


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    summary: str
    unit: str
    height: int
    grid: list[Tick]
    labels: list[Tick]
    columns: list[Column]
    head: list[str]  # of the table
    lines: list[tuple[str, str]]  # kind, points


@dataclass(frozen=True, slots=True)
class Part:
    kind: str
    x: str
    width: str
    title: str


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    href: str
    value: str
    note: str
    parts: list[Part]
    is_bad: bool = False


# --- columns: ended calls by time -------------------------------------------------------------------------------


def build_throughput_plot(slices: Sequence[ChartSlice], span: ChartSpan, link: LinkToCalls) -> Plot:
    most = max((one.outcomes.total for one in slices), default=0)
    grid = list_grid_values(most)
    scale = HEIGHT / grid[-1]
    columns = [
        _build_column(
            n, len(slices), one, span,
            title=format_outcomes(one.outcomes),
            href=_limit_to_ended(_link_to_slice(one, link)) if one.outcomes.total else "",
            segments=list(_build_segments(one, span, scale, link)),
            values=[f"{one.outcomes.succeeded:,}", f"{one.outcomes.failed:,}", f"{one.outcomes.canceled:,}"],
        )
        for n, one in enumerate(slices)
    ]  # fmt: skip
    whole = Outcomes()
    for one in slices:
        whole.add(one.outcomes.succeeded, one.outcomes.failed, one.outcomes.canceled)
    return Plot(
        title="Throughput by outcome",
        summary=f"{format_outcomes(whole)} in the last {format_period(span.length)}.",
        unit=f"calls per {format_period(span.slice)}, by when they were due",
        height=HEIGHT,
        grid=[Tick(_format_pixels(HEIGHT - value * scale), format_short_number(value)) for value in grid],
        labels=_build_labels(slices, span),
        columns=columns,
        head=["Succeeded", "Failed", "Canceled"],
        lines=[],
    )


def _build_segments(one: ChartSlice, span: ChartSpan, scale: float, link: LinkToCalls) -> Iterator[Segment]:
    top = float(HEIGHT)
    for kind, count in (
        ("succeeded", one.outcomes.succeeded),
        ("canceled", one.outcomes.canceled),
        ("failed", one.outcomes.failed),
    ):
        if count:
            height = max(count * scale, MIN_HEIGHT)
            top -= height
            title = f"{format_slice_time(one, span)}: {count:,} {kind}"
            yield Segment(
                kind,
                _format_pixels(top),
                _format_pixels(height),
                title,
                _link_to_slice(one, link, status=kind.capitalize()),
            )


def _limit_to_ended(href: str) -> str:
    return f"{href}&{ENDED_STATUSES}"


def _link_to_slice(one: ChartSlice, link: LinkToCalls, **more: str) -> str:
    return link(**more, **{"from": one.starts_at, "to": one.ends_at})


# --- lines: lateness by time ----------------------------------------------------------------------------------------------


def build_lateness_plot(slices: Sequence[ChartSlice], span: ChartSpan) -> Plot:
    """Build the plot of percentiles of lateness, on a logarithmic scale from milliseconds to minutes."""
    found = {kind: [one.lateness(share) for one in slices] for kind, share in PERCENTILES.items()}
    known = [value for values in found.values() for value in values if value is not None]
    highest = min(max([MIN_TOP_LATENESS_MS, *known]), MAX_LATENESS_MS)
    decades = math.ceil(math.log10(highest))

    def to_height(value: float) -> float:
        """Return the height of a value, from 0 to 100."""
        return 100 * math.log10(min(max(value, MIN_LATENESS_MS), 10.0**decades)) / decades

    columns = [
        _build_column(
            n, len(slices), one, span,
            title=", ".join(f"{kind} {format_lateness(values[n])}" for kind, values in found.items()),
            href="", segments=[], values=[format_lateness(values[n]) for values in found.values()],
        )
        for n, one in enumerate(slices)
        if found["p50"][n] is not None
    ]  # fmt: skip
    return Plot(
        title="Lateness",
        summary=_summarize_lateness(found["p99"], span),
        unit="from due to started, of first attempts",
        height=HEIGHT,
        grid=[
            Tick(
                _format_pixels(HEIGHT - HEIGHT * n / decades), format_milliseconds(10.0**n).replace(".0", "")
            )
            for n in range(decades + 1)
        ],
        labels=_build_labels(slices, span),
        columns=columns,
        head=list(PERCENTILES),
        lines=[(kind, line) for kind, values in found.items() for line in _build_lines(values, to_height)],
    )


def _summarize_lateness(p99: Sequence[float | None], span: ChartSpan) -> str:
    known = [value for value in p99 if value is not None]
    if not known:
        return f"No calls started in the last {format_period(span.length)}."
    highest, latest = format_lateness(max(known)), format_lateness(known[-1])
    return f"In the last {format_period(span.length)}, p99 was at most {highest}; it is {latest} now."


def _build_lines(values: Sequence[float | None], to_height: Callable[[float], float]) -> Iterator[str]:
    """Yield the points of each line, which ends where no value is known. A single value is a short line."""
    width, run, last = 100 / len(values), list[str](), ""
    for n, value in enumerate([*values, None]):
        if value is not None:
            y = 100 - to_height(value)
            if not run:
                run.append(f"{(n + 0.2) * width:.2f},{y:.2f}")
            run.append(f"{(n + 0.5) * width:.2f},{y:.2f}")
            last = f"{(n + 0.8) * width:.2f},{y:.2f}"
        elif run:
            yield " ".join([*run, last])
            run = []


# --- bars: by tenant, by host, by due time ------------------------------------------------------------------------


def build_outcome_bars(named: Sequence[tuple[str, str, Outcomes]]) -> list[Bar]:
    """Build bars of names, addresses and outcomes, all to the same scale."""
    most = max((outcomes.total for _, _, outcomes in named), default=1)
    return [_build_outcome_bar(name, href, outcomes, most) for name, href, outcomes in named]


def _build_outcome_bar(name: str, href: str, outcomes: Outcomes, most: int) -> Bar:
    parts, x = [], 0.0
    for kind in ("succeeded", "canceled", "failed"):
        count = getattr(outcomes, kind)
        width = 100 * count / most
        if count:
            parts.append(
                Part(kind, _format_percent(x), _format_percent(max(width, 0.4)), f"{count:,} {kind}")
            )
        x += width
    success = outcomes.success
    failing = success is not None and outcomes.failed > 0
    note = f"{format_share(1 - success)} failed" if failing and success is not None else ""
    return Bar(
        name,
        href and _limit_to_ended(href),
        f"{outcomes.total:,}",
        note,
        parts,
        failing and (success or 0) < 0.9,
    )


def build_count_bars(counts: Sequence[tuple[str, str, str, int, str]]) -> list[Bar]:
    """Build bars of names, kinds, addresses, counts and formatted counts, all to the same scale."""
    most = max((count for *_, count, _ in counts), default=1) or 1
    return [
        Bar(name, href if count else "", text, "",
            [Part(kind, "0%", _format_percent(max(100 * count / most, 0.4)), text)] if count else [])
        for name, kind, href, count, text in counts
    ]  # fmt: skip


# --- scales -------------------------------------------------------------------------------------------------------


def list_grid_values(highest: float) -> list[int]:
    """Return the grid lines from 0 to at least `highest`, in steps of 1, 2 or 5 times a power of ten."""
    step = 1
    while step * MAX_GRID_LINES < highest:
        step = _find_next_step(step)
    return [n * step for n in range(max(2, math.ceil(highest / step) + 1))]


def _find_next_step(step: int) -> int:
    return step * 5 // 2 if str(step).startswith("2") else step * 2


def _build_labels(slices: Sequence[ChartSlice], span: ChartSpan) -> list[Tick]:
    """Label the slices in which a multiple of the interval falls, by the clock of the active zone."""
    width, ticks = 100 / len(slices), []
    for n, one in enumerate(slices):
        local = to_active_zone(one.starts_at)
        since_epoch = local.replace(tzinfo=None) - EPOCH
        if since_epoch % span.label_interval < one.ends_at - one.starts_at:
            ticks.append(Tick(_format_percent(n * width), local.strftime(_choose_label_format(span))))
    return ticks


def _choose_label_format(span: ChartSpan) -> str:
    if span.length <= DAY:
        return "%H:%M"
    return "%a" if span.length <= 7 * DAY else "%-d %b"


def _build_column(
    n: int, count: int, one: ChartSlice, span: ChartSpan, *, title: str, **rest: object
) -> Column:
    width = 100 / count
    bar = width * BAR_SHARE
    when = format_slice_time(one, span)
    return Column(
        x=_format_percent(n * width), width=_format_percent(width),
        bar_x=_format_percent(n * width + (width - bar) / 2), bar_width=_format_percent(bar),
        when=when, title=f"{when}: {title}", **rest,  # type: ignore[arg-type]
    )  # fmt: skip


def _format_percent(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") + "%"


def _format_pixels(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


# --- texts --------------------------------------------------------------------------------------------------------


def format_slice_time(one: ChartSlice, span: ChartSpan) -> str:
    day = "" if span.length < DAY else "%-d %b "
    begin, end = to_active_zone(one.starts_at), to_active_zone(one.ends_at)
    return f"{begin.strftime(day + '%H:%M')}–{end.strftime('%H:%M')}"


def format_outcomes(outcomes: Outcomes) -> str:
    parts = [f"{outcomes.succeeded:,} succeeded", f"{outcomes.failed:,} failed"]
    return ", ".join([*parts, f"{outcomes.canceled:,} canceled"] if outcomes.canceled else parts)

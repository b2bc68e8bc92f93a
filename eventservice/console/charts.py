"""Charts as geometry, which templates draw as SVG: what goes across is in percent, so that a chart fits any width
and its texts stay as they are; what goes up is in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from eventservice.operators.formatting import (
    format_lateness,
    format_milliseconds,
    format_period,
    format_share,
    format_short_number,
)
from orchestration.statistics.chart_data import ChartSlice, ChartSpan, Outcomes

HEIGHT = 170
# What is there can be seen, and be hit.
LEAST_HEIGHT = 2
MOST_GRID_LINES = 4
# Of a slice's width.
BAR = 0.82

DAY = timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# What a bar counts, and so what it leads to: in the present, other calls are due too.
ENDED = urlencode([("status", status) for status in ("Succeeded", "Failed", "Canceled")])

PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
LATE_FLOOR_MS, LATE_LOWEST_TOP_MS, LATE_TOP_MS = 1.0, 100.0, 100_000.0

Link = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Tick:
    """A line across and its text; or, below the chart, a text alone."""

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


# --- columns: what ended, by time -------------------------------------------------------------------------------


def throughput(slices: Sequence[ChartSlice], span: ChartSpan, link: Link) -> Plot:
    most = max((one.outcomes.total for one in slices), default=0)
    grid = nice_grid(most)
    scale = HEIGHT / grid[-1]
    columns = [
        _column(
            n, len(slices), one, span,
            title=format_outcomes(one.outcomes),
            href=_ended(_of_slice(one, link)) if one.outcomes.total else "",
            segments=list(_stacked(one, span, scale, link)),
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
        grid=[Tick(_px(HEIGHT - value * scale), format_short_number(value)) for value in grid],
        labels=_labels(slices, span),
        columns=columns,
        head=["Succeeded", "Failed", "Canceled"],
        lines=[],
    )


def _stacked(one: ChartSlice, span: ChartSpan, scale: float, link: Link) -> Iterator[Segment]:
    top = float(HEIGHT)
    for kind, count in (
        ("succeeded", one.outcomes.succeeded),
        ("canceled", one.outcomes.canceled),
        ("failed", one.outcomes.failed),
    ):
        if count:
            height = max(count * scale, LEAST_HEIGHT)
            top -= height
            title = f"{format_slice_time(one, span)}: {count:,} {kind}"
            yield Segment(kind, _px(top), _px(height), title, _of_slice(one, link, status=kind.capitalize()))


def _ended(href: str) -> str:
    return f"{href}&{ENDED}"


def _of_slice(one: ChartSlice, link: Link, **more: str) -> str:
    return link(**more, **{"from": one.starts_at, "to": one.ends_at})


# --- lines: how late ----------------------------------------------------------------------------------------------


def lateness(slices: Sequence[ChartSlice], span: ChartSpan) -> Plot:
    """By powers of ten: milliseconds are usual, and minutes are what is looked for."""
    found = {kind: [one.lateness(share) for one in slices] for kind, share in PERCENTILES.items()}
    known = [value for values in found.values() for value in values if value is not None]
    highest = min(max([LATE_LOWEST_TOP_MS, *known]), LATE_TOP_MS)
    decades = math.ceil(math.log10(highest))

    def up(value: float) -> float:
        """From 0 to 100."""
        return 100 * math.log10(min(max(value, LATE_FLOOR_MS), 10.0**decades)) / decades

    columns = [
        _column(
            n, len(slices), one, span,
            title=", ".join(f"{kind} {format_lateness(values[n])}" for kind, values in found.items()),
            href="", segments=[], values=[format_lateness(values[n]) for values in found.values()],
        )
        for n, one in enumerate(slices)
        if found["p50"][n] is not None
    ]  # fmt: skip
    return Plot(
        title="Lateness",
        summary=_worst(found["p99"], span),
        unit="from due to started, of first attempts",
        height=HEIGHT,
        grid=[
            Tick(_px(HEIGHT - HEIGHT * n / decades), format_milliseconds(10.0**n).replace(".0", ""))
            for n in range(decades + 1)
        ],
        labels=_labels(slices, span),
        columns=columns,
        head=list(PERCENTILES),
        lines=[(kind, line) for kind, values in found.items() for line in _lines(values, up)],
    )


def _worst(p99: Sequence[float | None], span: ChartSpan) -> str:
    known = [value for value in p99 if value is not None]
    if not known:
        return f"No call was started in the last {format_period(span.length)}."
    return f"In the last {format_period(span.length)} p99 was {format_lateness(max(known))} at its worst, and is {format_lateness(known[-1])} now."


def _lines(values: Sequence[float | None], up: Callable[[float], float]) -> Iterator[str]:
    """Broken where nothing is known. A lone value is a short line."""
    width, run, last = 100 / len(values), list[str](), ""
    for n, value in enumerate([*values, None]):
        if value is not None:
            y = 100 - up(value)
            if not run:
                run.append(f"{(n + 0.2) * width:.2f},{y:.2f}")
            run.append(f"{(n + 0.5) * width:.2f},{y:.2f}")
            last = f"{(n + 0.8) * width:.2f},{y:.2f}"
        elif run:
            yield " ".join([*run, last])
            run = []


# --- bars: by tenant, by host, by due time ------------------------------------------------------------------------


def outcome_bars(named: Sequence[tuple[str, str, Outcomes]]) -> list[Bar]:
    """Name, address, outcomes."""
    most = max((outcomes.total for _, _, outcomes in named), default=1)
    return [_outcome_bar(name, href, outcomes, most) for name, href, outcomes in named]


def _outcome_bar(name: str, href: str, outcomes: Outcomes, most: int) -> Bar:
    parts, x = [], 0.0
    for kind in ("succeeded", "canceled", "failed"):
        count = getattr(outcomes, kind)
        width = 100 * count / most
        if count:
            parts.append(Part(kind, _percent(x), _percent(max(width, 0.4)), f"{count:,} {kind}"))
        x += width
    success = outcomes.success
    failing = success is not None and outcomes.failed > 0
    note = f"{format_share(1 - success)} failed" if failing and success is not None else ""
    return Bar(
        name, href and _ended(href), f"{outcomes.total:,}", note, parts, failing and (success or 0) < 0.9
    )


def count_bars(counts: Sequence[tuple[str, str, str, int, str]]) -> list[Bar]:
    """Name, kind, address, count, and the count as it is said."""
    most = max((count for *_, count, _ in counts), default=1) or 1
    return [
        Bar(name, href if count else "", said, "",
            [Part(kind, "0%", _percent(max(100 * count / most, 0.4)), said)] if count else [])
        for name, kind, href, count, said in counts
    ]  # fmt: skip


# --- scales -------------------------------------------------------------------------------------------------------


def nice_grid(most: float) -> list[int]:
    """From 0 to at least `most`, in steps of 1, 2 or 5 times a power of ten."""
    step = 1
    while step * MOST_GRID_LINES < most:
        step = _next_nice(step)
    return [n * step for n in range(max(2, math.ceil(most / step) + 1))]


def _next_nice(step: int) -> int:
    return step * 5 // 2 if str(step).startswith("2") else step * 2


def _labels(slices: Sequence[ChartSlice], span: ChartSpan) -> list[Tick]:
    apart, width = span.label_interval, 100 / len(slices)
    ticks = []
    for n, one in enumerate(slices):
        if (one.starts_at - EPOCH) % apart == timedelta():
            ticks.append(Tick(_percent(n * width), one.starts_at.strftime(_label_format(span))))
    return ticks


def _label_format(span: ChartSpan) -> str:
    if span.length <= DAY:
        return "%H:%M"
    return "%a" if span.length <= 7 * DAY else "%-d %b"


def _column(n: int, count: int, one: ChartSlice, span: ChartSpan, *, title: str, **rest: object) -> Column:
    width = 100 / count
    bar = width * BAR
    when = format_slice_time(one, span)
    return Column(
        x=_percent(n * width), width=_percent(width),
        bar_x=_percent(n * width + (width - bar) / 2), bar_width=_percent(bar),
        when=when, title=f"{when}: {title}", **rest,  # type: ignore[arg-type]
    )  # fmt: skip


def _percent(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") + "%"


def _px(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


# --- words --------------------------------------------------------------------------------------------------------


def format_slice_time(one: ChartSlice, span: ChartSpan) -> str:
    day = "" if span.length < DAY else "%-d %b "
    return f"{one.starts_at.strftime(day + '%H:%M')}–{one.ends_at.strftime('%H:%M')}"


def format_outcomes(outcomes: Outcomes) -> str:
    parts = [f"{outcomes.succeeded:,} succeeded", f"{outcomes.failed:,} failed"]
    return ", ".join([*parts, f"{outcomes.canceled:,} canceled"] if outcomes.canceled else parts)

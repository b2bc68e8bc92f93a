"""Charts as geometry: round scales, bars that are visible and clickable, and times that fit on a phone."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from eventservice.console import charts
from eventservice.operators.formatting import format_share
from orchestration.statistics.chart_data import SPANS, ChartSlice, ChartSpan, Outcomes

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


def build_slices(span: ChartSpan, outcomes: dict[int, Outcomes] | None = None) -> list[ChartSlice]:
    found = []
    for n in range(span.length // span.slice):
        starts_at = BEGIN + n * span.slice
        found.append(ChartSlice(starts_at, starts_at + span.slice, (outcomes or {}).get(n, Outcomes())))
    return found


def build_link(**filters: Any) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(filters.items()))


@pytest.mark.parametrize(
    ("most", "grid"),
    [
        (0, [0, 1]), (1, [0, 1]), (4, [0, 1, 2, 3, 4]), (7, [0, 2, 4, 6, 8]), (95, [0, 50, 100]),
        (1_234_567, [0, 500_000, 1_000_000, 1_500_000]),
    ],
)  # fmt: skip
def test_grid_lines_are_at_round_numbers_and_reach_above_all_bars(most: int, grid: list[int]) -> None:
    assert charts.list_grid_values(most) == grid


@pytest.mark.parametrize("span", SPANS.values(), ids=list(SPANS))
def test_a_chart_has_few_bars_and_few_times(span: ChartSpan) -> None:
    plot = charts.build_throughput_plot(build_slices(span), span, build_link)
    assert len(plot.columns) <= 60
    assert 4 <= len(plot.labels) <= 8
    assert len(plot.grid) <= charts.MAX_GRID_LINES + 1


def test_a_bar_is_stacked_within_the_chart_and_each_part_leads_to_its_calls() -> None:
    span = SPANS["1h"]
    plot = charts.build_throughput_plot(build_slices(span, {5: Outcomes(60, 40, 0)}), span, build_link)
    good, bad = plot.columns[5].segments
    assert (good.kind, float(good.height)) == ("succeeded", 0.6 * charts.HEIGHT)
    assert (bad.kind, float(bad.y)) == ("failed", 0)
    assert bad.href == f"from={BEGIN + timedelta(minutes=5)} status=Failed to={BEGIN + timedelta(minutes=6)}"
    assert bad.title == "00:05–00:06: 40 failed"
    assert plot.columns[5].href.startswith(
        f"from={BEGIN + timedelta(minutes=5)} to={BEGIN + timedelta(minutes=6)}&"
    )


def test_a_bar_links_to_the_calls_that_it_counts_and_not_to_waiting_ones() -> None:
    span = SPANS["1h"]
    of_time = (
        charts.build_throughput_plot(build_slices(span, {5: Outcomes(3, 2, 1)}), span, build_link)
        .columns[5]
        .href
    )
    (of_tenant,) = charts.build_outcome_bars([("a", "/calls/?tenant=a", Outcomes(3, 2, 1))])
    for href in (of_time, of_tenant.href):
        assert href.endswith("&status=Succeeded&status=Failed&status=Canceled")


def test_a_single_failure_among_thousands_is_visible() -> None:
    span = SPANS["15m"]
    plot = charts.build_throughput_plot(build_slices(span, {0: Outcomes(100_000, 1, 0)}), span, build_link)
    assert float(plot.columns[0].segments[-1].height) >= charts.MIN_HEIGHT


def test_an_empty_slice_has_no_link() -> None:
    span = SPANS["15m"]
    assert charts.build_outcome_bars([("All others", "", Outcomes(1, 0, 0))])[0].href == ""
    assert all(
        column.href == ""
        for column in charts.build_throughput_plot(build_slices(span), span, build_link).columns
    )


def test_lateness_has_a_logarithmic_scale_and_gaps_without_calls() -> None:
    span = SPANS["15m"]
    slices = build_slices(span)
    for n in (0, 1, 5):
        slices[n].late[1] = 10  # 5 to 10 ms
    plot = charts.build_lateness_plot(slices, span)
    assert [tick.text for tick in plot.grid] == ["1 ms", "10 ms", "100 ms"]
    assert [kind for kind, _ in plot.lines] == ["p50", "p50", "p95", "p95", "p99", "p99"]
    assert len(plot.columns) == 3
    assert plot.columns[0].title == "00:00–00:01: p50 7.5 ms, p95 9.8 ms, p99 9.9 ms"


def test_lateness_of_more_than_a_minute_stays_in_the_chart_and_is_labeled() -> None:
    span = SPANS["15m"]
    slices = build_slices(span)
    slices[0].late[-1] = 1
    plot = charts.build_lateness_plot(slices, span)
    assert plot.columns[0].values == ["more than 1 m"] * 3
    heights = [float(point.split(",")[1]) for _, points in plot.lines for point in points.split()]
    assert all(0 <= height <= 100 and not math.isnan(height) for height in heights)


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (1.0, "100 %"),
        (0.99999, "> 99.9 %"),
        (0.999, "99.9 %"),
        (0.0, "0 %"),
        (0.00001, "< 0.1 %"),
        (0.5, "50 %"),
    ],
)
def test_a_share_is_rounded_to_100_percent_only_if_it_is_exact(share: float, said: str) -> None:
    assert format_share(share) == said


def test_bars_are_scaled_to_the_longest() -> None:
    named = [("a", "/a", Outcomes(150, 50, 0)), ("b", "/b", Outcomes(0, 100, 0))]
    first, second = charts.build_outcome_bars(named)
    assert [(part.kind, part.x, part.width) for part in first.parts] == [
        ("succeeded", "0%", "75%"),
        ("failed", "75%", "25%"),
    ]
    assert [part.width for part in second.parts] == ["50%"]
    assert (second.note, second.is_bad) == ("100 % failed", True)

"""Tables and plots of a comparison.

    python -m benchmarks.peers.report                            print the newest results as tables in Markdown
    python -m benchmarks.peers.report FILE --folder /tmp/plots   those of a file, with an SVG plot of each workload
    python -m benchmarks.peers.report FILE --page docs/performance.md

With --page, the plots are written to the folder `performance` beside the page, and the text between its two marks is replaced.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.plot import Group, Value, render_bars
from benchmarks.peers.results import FOLDER, Results, find_newest_results, load_results
from benchmarks.report import compute_ratio, console, format_value

OURS = "Event Service"
REFERENCE = "pg-boss"
BEGIN, END = "<!-- benchmarks.peers: begin -->", "<!-- benchmarks.peers: end -->"


@dataclass(frozen=True)
class Column:
    title: str
    figure: str


@dataclass(frozen=True)
class Chart:
    """One table and one plot. With a `ratio`, the table compares the first column with the reference."""

    name: str
    title: str
    workload: str
    unit: str
    columns: Sequence[Column]
    more: Sequence[Column] = ()  # columns of the table that are not drawn
    ratio: bool = False
    logarithmic: bool = False


BURST_COLUMNS = (
    Column("from the first arrival", "per_second_from_first"),
    Column("first arrival, ms", "first_arrival_ms"),
)
CHARTS = (
    Chart(
        "burst", "Burst of {calls:,} jobs", "burst", "calls per second",
        [Column("calls/s", "per_second")], BURST_COLUMNS, ratio=True,
    ),
    Chart(
        "pending", "Burst of {calls:,} jobs with {pending:,} pending", "pending", "calls per second",
        [Column("calls/s", "per_second")], BURST_COLUMNS, ratio=True,
    ),
    Chart(
        "lateness", "Lateness at {rate:g} jobs per second", "lateness", "ms",
        [Column("p50", "p50_ms"), Column("p99", "p99_ms")], [Column("max", "max_ms"), Column("min", "first_ms")],
        logarithmic=True,
    ),
    Chart(
        "submission", "Submission of {bulk:,} jobs", "submission", "jobs per second",
        [Column("jobs/s", "per_second")], ratio=True,
    ),
    Chart(
        "memory", "Memory of all processes, without the database server", "burst", "MB",
        [Column("idle, PSS", "idle_pss_mb"), Column("peak in the burst, PSS", "peak_pss_mb")],
        [Column("idle, RSS", "idle_rss_mb"), Column("peak, RSS", "peak_rss_mb")],
    ),
    Chart(
        "cpu", "CPU time per call of the burst", "burst", "µs",
        [Column("processes", "cpu_us_per_call"), Column("database server", "store_cpu_us_per_call")],
    ),
)  # fmt: skip


def list_measured(results: Results, chart: Chart) -> list[str]:
    """Return the candidates that have at least one of the figures, in the order of the run."""
    return [
        name
        for name in results.candidates
        if any(results.summarize(chart.workload, name, column.figure) for column in chart.columns)
    ]


def format_title(results: Results, chart: Chart) -> str:
    return chart.title.format(**results.options)


def build_table(results: Results, chart: Chart) -> list[list[str]]:
    """Return the rows of a table, the first of them the titles."""
    columns = [*chart.columns, *chart.more]
    header = ["", *(column.title for column in columns)]
    if chart.ratio:
        header.insert(2, f"× {REFERENCE}")
    rows = [header]
    for name in list_measured(results, chart):
        cells = [format_value(results.summarize(chart.workload, name, column.figure)) for column in columns]
        if chart.ratio:
            cells.insert(1, format_value(compute_reference_ratio(results, chart, name)))
        rows.append([name, *cells])
    return rows


def compute_reference_ratio(results: Results, chart: Chart, name: str) -> float | None:
    """Return the median of the first column, divided by the reference's of the same run."""
    medians = [
        (results.summarize(chart.workload, candidate, chart.columns[0].figure) or {}).get("median")
        for candidate in (name, REFERENCE)
    ]
    ratio = compute_ratio(*medians)
    return None if ratio is None else round(ratio, 2)


def format_markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(rows[0]) - 1), *lines[1:]])


def render_plot(results: Results, chart: Chart) -> str:
    """Return the SVG of a chart."""
    groups = [
        Group(
            name,
            [
                _build_value(results.summarize(chart.workload, name, column.figure))
                for column in chart.columns
            ],
            ours=name.startswith(OURS),
        )
        for name in list_measured(results, chart)
    ]
    series = [column.title for column in chart.columns]
    return render_bars(format_title(results, chart), chart.unit, series, groups, chart.logarithmic)


def _build_value(summary: dict[str, Any] | None) -> Value | None:
    if summary is None:
        return None
    return Value(summary["median"], summary["min"], summary["max"])


def build_candidates_table(results: Results) -> list[list[str]]:
    rows = [["", "version", "store", "settings"]]
    for name, about in results.candidates.items():
        rows.append([name, about["version"], about["store"], about["settings"]])
    return rows


def build_record_table(results: Results) -> list[list[str]]:
    """Return what each candidate keeps and promises."""
    rows = [["", "outcome of a call", "log of attempts", "events", "a submission is acknowledged"]]
    for name, about in results.candidates.items():
        record = about["record"]
        rows.append(
            [name, record["outcome"], record["attempt_log"], record["events"], record["acknowledgement"]]
        )
    return rows


def format_report(results: Results, plots: str | None) -> str:
    """Return all tables in Markdown. `plots` is the path of the plots' folder as the page names it."""
    machine = ", ".join(f"{name} {value}" for name, value in results.on.items() if value is not None)
    sections = [f"Measured at {results.started_at}, {results.options['rounds']} rounds: {machine}."]
    for chart in CHARTS:
        rows = build_table(results, chart)
        if len(rows) == 1:
            continue
        title = format_title(results, chart)
        sections.append(f"### {title}\n")
        if plots is not None:
            sections.append(f"![{title}]({plots}/{chart.name}.svg)\n")
        sections.append(f"{chart.unit[0].upper()}{chart.unit[1:]}, median of the rounds (lowest–highest).\n")
        sections.append(format_markdown(rows))
    for failure in results.failures:
        reason = failure["reason"].splitlines()[0]
        sections.append(f"Not measured: {failure['workload']}, {failure['candidate']}: {reason}")
    sections += [f"### Candidates\n\n{format_markdown(build_candidates_table(results))}"]
    sections += [f"### What they keep and promise\n\n{format_markdown(build_record_table(results))}"]
    return "\n\n".join(section.rstrip("\n") for section in sections) + "\n"


def write_plots(results: Results, folder: Path) -> None:
    """Write the plot of each chart that has figures."""
    folder.mkdir(parents=True, exist_ok=True)
    for chart in CHARTS:
        if list_measured(results, chart):
            (folder / f"{chart.name}.svg").write_text(render_plot(results, chart))


def replace_section(page: str, section: str) -> str:
    """Return the page with the text between the two marks replaced. Raise ValueError if they are missing."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.S)
    if not pattern.search(page):
        raise ValueError(f"the page has no lines {BEGIN} and {END}")
    return pattern.sub(lambda match: f"{BEGIN}\n\n{section}\n{END}", page, count=1)


def print_tables(results: Results) -> None:
    """Print the tables of the figures to stderr."""
    from rich.table import Table

    for chart in CHARTS:
        header, *rows = build_table(results, chart)
        if not rows:
            continue
        table = Table(title=f"{format_title(results, chart)}: {chart.unit}", title_justify="left")
        for number, column in enumerate(header):
            table.add_column(column, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", nargs="?", type=Path, help="results of a run (default: the newest)")
    parser.add_argument("--folder", type=Path, help="write a plot of each workload to this folder")
    parser.add_argument("--page", type=Path, help="put tables and plots into this page")
    options = parser.parse_args()
    try:
        results = load_results(options.file or find_newest_results(FOLDER))
        if options.page is not None:
            plots = options.page.parent / options.page.stem
            section = format_report(results, plots.name)
            options.page.write_text(replace_section(options.page.read_text(), section))
            write_plots(results, plots)
            return 0
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.folder is not None:
        write_plots(results, options.folder)
    print(format_report(results, None), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Compare this working tree with another commit: both run the same benchmarks in turns, and the medians are printed
side by side.

Usage: `make bench NAME=burst AGAINST=main~10`, or `python -m benchmarks.compare burst --against main~10 --quick`. Each
tree runs its own benchmark code. The commit is checked out into a temporary git worktree, and gets a virtual
environment of its own if its requirements.lock differs. Options that are not listed here are passed on to the benchmarks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.__main__ import PROGRAMS, QUICK
from benchmarks.command_line import exit_cleanly, parse_positive, parse_server
from benchmarks.processes import REPOSITORY, BenchmarkError, create_virtual_environment, start_process
from benchmarks.report import compute_ratio, console, format_value, log_progress, summarize_rounds
from benchmarks.system import FOLDER_PREFIX, build_environment, rotate

DEFAULT_NAMES = ("burst", "submit", "idle", "lists")
DEFAULT_RUNS = 5
DEFAULT_THRESHOLD_PERCENT = 5.0

# The rounds of a comparison are its alternating runs, except where a round takes less than a second. Peers are not compared.
ARGUMENTS = {"burst": ["--no-peers"], "startup": ["--rounds=10"]}
# A figure of `lists`: the mean of the medians of all queries of one kind. Half of the queries take a tenth of the time of
# the others, so the median of all requests together would jump from one half to the other.
MEAN_OF_MEDIANS = "mean of the medians"
# The figures that decide whether there is a loss. The others are shown, but vary too much from run to run.
DECISIVE: dict[str, tuple[str, ...]] = {
    "burst": ("system: per_second",),
    "submit": ("one by one: per_second", "in batches: per_second"),
    "idle": ("cpu_percent: engine, dispatcher and cluster", "pss_mb: engine, dispatcher and cluster"),
    "lists": tuple(
        # The other pages of the console have a limit of their own, and show more from commit to commit.
        f"{kind}: {MEAN_OF_MEDIANS}"
        for kind in ("API, first page", "API, by cursor", "console, list")
    ),
    "startup": ("help: cpu_ms",),
}
# Figures of what runs beside the system: they show how quick the machine was.
BESIDE_THE_SYSTEM = ("limits", "huey", "bare", "ratio")
PERCENTILES = ("p50", "p95", "p99", "max")
TAILS = ("p95", "p99", "max", "first_request_ms", "event_lag_max_ms")


# --- figures --------------------------------------------------------------------------------------------------


class Direction(StrEnum):
    """Whether a larger figure is an improvement."""

    HIGHER_IS_BETTER = "higher is better"
    LOWER_IS_BETTER = "lower is better"


class Verdict(StrEnum):
    SAME = "same"
    GAIN = "gain"
    LOSS = "loss"


@dataclass(frozen=True)
class Comparison:
    """One figure of both trees, over all runs."""

    figure: str
    this: dict[str, Any]
    against: dict[str, Any]
    ratio: float | None
    verdict: Verdict
    decisive: bool


def flatten_figures(figures: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of a benchmark's JSON by their path. Of several rounds only the median counts."""
    flat: dict[str, float] = {}
    for name, value in figures.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            if "median" in value:
                value = value["median"]
            else:
                flat |= flatten_figures(value, f"{path}: ")
        if isinstance(value, int | float) and not isinstance(value, bool):
            flat[path] = float(value)
    return flat


def add_means_of_medians(runs: Sequence[dict[str, float]]) -> None:
    """Add the mean of the medians of each kind of query to each run. Queries that some of the runs lack are left out."""
    medians = defaultdict(list)
    for figure in set.intersection(*(set(run) for run in runs)):
        kind, *query = figure.split(": ")
        if len(query) == 2 and query[0] != "together" and query[1] == "p50":
            medians[kind].append(figure)
    for run in runs:
        for kind, figures in medians.items():
            run[f"{kind}: {MEAN_OF_MEDIANS}"] = statistics.fmean(run[figure] for figure in figures)


def find_direction(figure: str) -> Direction | None:
    """Return which way the figure improves, or None if it says nothing about the speed of the system."""
    parts = figure.split(": ")
    if parts[0].startswith(BESIDE_THE_SYSTEM) or parts[-1] in ("count", "ratio"):
        return None
    if any(part.endswith("per_second") for part in parts):
        return Direction.HIGHER_IS_BETTER
    if any(part.endswith(("_ms", "_mb", "_in_s")) or part.startswith(("cpu_", "pss_")) for part in parts):
        return Direction.LOWER_IS_BETTER
    return Direction.LOWER_IS_BETTER if parts[-1] in (*PERCENTILES, MEAN_OF_MEDIANS) else None


def is_decisive(benchmark: str, figure: str) -> bool:
    """Return whether a loss in this figure is a loss of the benchmark."""
    if benchmark in DECISIVE:
        return figure in DECISIVE[benchmark]
    return figure.split(": ")[-1] not in TAILS


def judge(change: float | None, direction: Direction, threshold_percent: float) -> Verdict:
    """Return what a change means, given as this tree's median divided by the other one's."""
    if change is None or round(abs(change - 1) * 100, 6) <= threshold_percent:
        return Verdict.SAME
    improved = change > 1 if direction is Direction.HIGHER_IS_BETTER else change < 1
    return Verdict.GAIN if improved else Verdict.LOSS


def compare_runs(
    benchmark: str,
    this: Sequence[Mapping[str, Any]],
    against: Sequence[Mapping[str, Any]],
    threshold_percent: float,
) -> list[Comparison]:
    """Compare the figures that the runs of both trees have in common."""
    ours, theirs = ([flatten_figures(figures) for figures in runs] for runs in (this, against))
    if benchmark == "lists":
        add_means_of_medians([*ours, *theirs])
    comparisons = []
    for figure in ours[0]:
        direction = find_direction(figure)
        if direction is None or not all(figure in run for run in (*ours, *theirs)):
            continue
        of_this, of_against = (summarize_rounds([run[figure] for run in runs], 3) for runs in (ours, theirs))
        change = compute_ratio(of_this["median"], of_against["median"])
        verdict = judge(change, direction, threshold_percent)
        comparisons.append(
            Comparison(figure, of_this, of_against, change, verdict, is_decisive(benchmark, figure))
        )
    return comparisons


# --- trees ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """A checkout of the project, and the Python that runs it."""

    label: str
    path: Path
    python: Path

    def run(self, name: str, arguments: Sequence[str]) -> dict[str, Any]:
        """Run the tree's own benchmark once and return the JSON that it prints."""
        environment = {
            key: value for key, value in build_environment().items() if not key.startswith("PYTHON")
        }
        argv = [str(self.python), "-m", f"benchmarks.{name}", *arguments]
        with tempfile.TemporaryFile() as log:
            with start_process(
                argv, environment, cwd=self.path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            ) as process:
                output, _ = process.communicate()
            if process.returncode:
                log.seek(0)
                reason = log.read().decode(errors="replace")[-1500:].strip()
                raise BenchmarkError(f"{name} failed in {self.label}: {reason}")
        return parse_output(output.decode())


def parse_output(output: str) -> dict[str, Any]:
    """Return the JSON document in the last line of a benchmark's output."""
    lines = output.strip().splitlines()
    try:
        found: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise BenchmarkError(f"the benchmark printed no figures: {output[-300:]!r}") from None
    return found


@contextlib.contextmanager
def check_out(commit: str, parent: Path | None) -> Iterator[Tree]:
    """Check the commit out into a temporary worktree, with a Python that has its requirements."""
    name = run_git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if not name:
        raise BenchmarkError(f"there is no commit {commit!r}")
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent)).resolve()
    path = folder / "tree"
    try:
        run_git("worktree", "add", "--detach", "--quiet", str(path), name, check=True)
        yield Tree(name[:10], path, find_python(path, folder))
    finally:
        run_git("worktree", "remove", "--force", str(path))
        shutil.rmtree(folder, ignore_errors=True)


def find_python(tree: Path, folder: Path) -> Path:
    """Return this Python if both trees have the same requirements; else install the tree's into a new environment.

    In older commits, requirements.lock also has the tools for development, as requirements-dev.lock has now.
    """
    requirements = tree / "requirements.lock"
    if requirements.read_bytes() in [path.read_bytes() for path in REPOSITORY.glob("requirements*.lock")]:
        return Path(sys.executable)
    log_progress("the commit has other requirements: installing them into a temporary environment")
    return create_virtual_environment(
        folder / "venv", ["--require-hashes", "--no-deps", "-r", str(requirements)]
    )


def run_git(*arguments: str, check: bool = False) -> str:
    """Return git's output; with `check` raise BenchmarkError if it fails."""
    result = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True)
    if check and result.returncode:
        raise BenchmarkError(f"git {arguments[0]} failed: {result.stderr.strip()}")
    return result.stdout.strip()


# --- runs -----------------------------------------------------------------------------------------------------


def run_in_turns(
    trees: Sequence[Tree], name: str, runs: int, arguments: Sequence[str]
) -> list[list[dict[str, Any]]]:
    """Return the figures of every run by tree. The trees alternate, and each goes first in every other round."""
    figures: dict[str, list[dict[str, Any]]] = {tree.label: [] for tree in trees}
    for tree in trees:
        if not (tree.path / "benchmarks" / f"{name}.py").exists():
            raise BenchmarkError(f"{tree.label} has no benchmark {name!r}")
    for number in range(runs):
        for tree in rotate(trees, number):
            log_progress(f"{name}, run {number + 1} of {runs}: {tree.label}")
            figures[tree.label].append(tree.run(name, arguments)["figures"])
    return list(figures.values())


def summarize(name: str, comparisons: Sequence[Comparison], threshold_percent: float) -> str:
    """Return one sentence that says whether this tree is slower."""
    losses = [one for one in comparisons if one.decisive and one.verdict is Verdict.LOSS]
    if not losses:
        return f"{name}: no measurable loss (within {threshold_percent:g} %)"
    return f"{name}: LOSS in " + ", ".join(f"{one.figure} ({one.ratio}×)" for one in losses)


def print_comparison(
    name: str, runs: int, label: str, comparisons: Sequence[Comparison], include_tails: bool
) -> None:
    table = Table(title=f"{name}: median of {runs} runs (lowest–highest)", title_justify="left")
    for column in ("", "this tree", label, "ratio", ""):
        table.add_column(column, justify="right" if column else "left")
    for one in comparisons:
        if one.figure.split(": ")[-1] in TAILS and not (one.decisive or include_tails):
            continue
        mark = "" if one.verdict is Verdict.SAME else one.verdict.value
        if one.decisive and one.verdict is Verdict.LOSS:
            mark = "[red]LOSS[/red]"
        figure = one.figure if one.decisive else f"[dim]{one.figure}[/dim]"
        table.add_row(
            figure,
            format_value(one.this),
            format_value(one.against),
            "–" if one.ratio is None else f"{one.ratio:.3f}",
            mark,
        )
    console.print(table)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="benchmark",
        help=f"some of: {', '.join(PROGRAMS)} (default: {', '.join(DEFAULT_NAMES)})",
    )
    parser.add_argument("--against", required=True, metavar="COMMIT", help="the commit to compare with")
    parser.add_argument(
        "--runs", type=parse_positive, default=DEFAULT_RUNS, help="runs of each tree (default: %(default)s)"
    )
    parser.add_argument(
        "--threshold",
        type=float,
        default=DEFAULT_THRESHOLD_PERCENT,
        metavar="PERCENT",
        help="ignore changes of a median up to this many percent (default: %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="use small sizes")
    parser.add_argument(
        "--all", action="store_true", help="show the p95, p99 and maximum of each figure, too"
    )
    parser.add_argument(
        "--database", type=parse_server, metavar="URL", help="as in the benchmarks: a server to use"
    )
    parser.add_argument("--folder", type=Path, help="the folder for temporary files")
    return parser


def main() -> int:
    """Return 0 if no benchmark lost, else 1."""
    options, passed_on = build_parser().parse_known_args()
    names = options.names or list(DEFAULT_NAMES)
    if unknown := set(names) - set(PROGRAMS):
        build_parser().error(f"unknown benchmark: {', '.join(sorted(unknown))}")
    shared = [f"--{name}={value}" for name in ("database", "folder") if (value := getattr(options, name))]
    verdicts = []
    lost = False
    with exit_cleanly("the comparison"), check_out(options.against, options.folder) as against:
        this = Tree("this tree", REPOSITORY, Path(sys.executable))
        for name in names:
            sizes = QUICK[name] if options.quick else []
            arguments = ["--rounds=1", *ARGUMENTS.get(name, []), *sizes, *shared, *passed_on]
            ours, theirs = run_in_turns([this, against], name, options.runs, arguments)
            comparisons = compare_runs(name, ours, theirs, options.threshold)
            lost |= any(one.decisive and one.verdict is Verdict.LOSS for one in comparisons)
            verdicts.append(summarize(name, comparisons, options.threshold))
            print_comparison(name, options.runs, against.label, comparisons, options.all)
            line = {
                "benchmark": name,
                "against": against.label,
                "runs": options.runs,
                "threshold_percent": options.threshold,
                "comparisons": [asdict(one) for one in comparisons],
            }
            print(json.dumps(line), flush=True)
    for verdict in verdicts:
        console.print(verdict, highlight=False)
    return int(lost)


if __name__ == "__main__":
    sys.exit(main())

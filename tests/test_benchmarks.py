"""Every benchmark runs, with tiny sizes, and leaves no process and no file behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import PROGRAMS, SMOKE
from benchmarks.compare import (
    DECISIVE,
    Direction,
    Verdict,
    add_means_of_medians,
    compare_runs,
    find_direction,
    find_python,
    flatten_figures,
    judge,
    parse_output,
    run_git,
    summarize,
)
from benchmarks.processes import REPOSITORY, BenchmarkError
from benchmarks.report import compute_percentile, compute_ratio, summarize_distribution, summarize_rounds
from benchmarks.system import rotate

pytestmark = pytest.mark.sqlite_only


def run_program(*argv: str) -> list[dict[str, Any]]:
    result = subprocess.run(
        [sys.executable, "-m", *argv],
        cwd=REPOSITORY,
        env={key: value for key, value in os.environ.items() if key not in ("DATABASE_URL", "DB_PATH")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.slow
def test_each_prints_its_figures_and_leaves_nothing_behind(tmp_path: Path) -> None:
    lines = run_program("benchmarks", "--smoke", "--folder", str(tmp_path))

    assert [line["benchmark"] for line in lines] == list(PROGRAMS)
    assert all(line["figures"] and line["on"]["database"] == "sqlite" for line in lines)
    assert not list(tmp_path.iterdir())
    assert not find_processes(tmp_path)


# One is enough to test the shared code; the others take long.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "lateness" else pytest.mark.slow) for name in PROGRAMS]
)
def test_each_runs_alone(name: str, tmp_path: Path) -> None:
    (line,) = run_program(f"benchmarks.{name}", *SMOKE[name], "--folder", str(tmp_path))

    assert line["benchmark"] == name
    assert not list(tmp_path.iterdir())
    assert not find_processes(tmp_path)


@pytest.mark.slow
def test_a_commit_is_compared_and_its_worktree_removed(tmp_path: Path) -> None:
    (line,) = run_program(
        "benchmarks.compare", "idle", "--against", "HEAD", "--runs", "1", *SMOKE["idle"],
        "--threshold", "1000000", "--folder", str(tmp_path),
    )  # fmt: skip

    assert line["benchmark"] == "idle"
    assert {one["figure"] for one in line["comparisons"]} >= set(DECISIVE["idle"])
    assert not list(tmp_path.iterdir())
    assert str(tmp_path) not in run_git("worktree", "list")


def find_processes(folder: Path) -> list[str]:
    """Return the command lines of processes that use this folder."""
    commands = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            text = (path / "environ").read_bytes() + (path / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in text and path.name != str(os.getpid()):
            commands.append(text[-200:].decode(errors="replace"))
    return commands


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(number) for number in range(1, 101)]
    assert compute_percentile(values, 0.5) == 50
    assert compute_percentile(values, 0.99) == 99
    assert compute_percentile(values, 1.0) == 100
    assert compute_percentile([], 0.5) is None
    assert summarize_distribution([3.0]) == {"count": 1, "p50": 3.0, "p95": 3.0, "p99": 3.0, "max": 3.0}


def test_rounds_are_summarized_by_their_median_and_range() -> None:
    assert summarize_rounds([3.0, 1.0, 2.0]) == {
        "median": 2.0,
        "min": 1.0,
        "max": 3.0,
        "rounds": [3.0, 1.0, 2.0],
    }
    assert compute_ratio(3.0, 2.0) == 1.5
    assert compute_ratio(1.0, None) is None


def test_another_candidate_is_first_in_each_round() -> None:
    assert [rotate("abc", number)[0] for number in range(4)] == ["a", "b", "c", "a"]
    assert sorted(rotate("abc", 2)) == ["a", "b", "c"]


def burst_figures(per_second: float, first_request_ms: float = 10.0) -> dict[str, Any]:
    return {
        "limits": {"inserts": summarize_rounds([100.0])},
        "system": {
            "per_second": summarize_rounds([per_second]),
            "first_request_ms": summarize_rounds([first_request_ms]),
        },
        "ratio_to": {"huey": 2.0},
    }


def test_figures_are_compared_by_their_path_and_median() -> None:
    flat = flatten_figures(
        {
            "system": {"per_second": summarize_rounds([1.0, 3.0])},
            "list": {"p50": 2.5, "max": None},
            "complete": True,
        }
    )

    assert flat == {"system: per_second": 2.0, "list: p50": 2.5}


@pytest.mark.parametrize(
    ("figure", "direction"),
    [
        ("system: per_second", Direction.HIGHER_IS_BETTER),
        ("1000: per_second: pending", Direction.HIGHER_IS_BETTER),
        ("system: peak_mb", Direction.LOWER_IS_BETTER),
        ("cpu_percent: engine", Direction.LOWER_IS_BETTER),
        ("system: cpu_s_per_1000: engine", Direction.LOWER_IS_BETTER),
        ("API, first page: together: p50", Direction.LOWER_IS_BETTER),
        ("lateness_ms: p50", Direction.LOWER_IS_BETTER),
        ("API, first page: together: count", None),
        ("system: events", None),
        ("limits: inserts", None),
        ("huey on SQLite, 2x8: per_second", None),
        ("bare, FULL: per_second", None),
        ("1000: per_second: ratio", None),
    ],
)
def test_only_figures_of_the_system_have_a_direction(figure: str, direction: Direction | None) -> None:
    assert find_direction(figure) is direction


@pytest.mark.parametrize(
    ("change", "direction", "verdict"),
    [
        (0.95, Direction.HIGHER_IS_BETTER, Verdict.SAME),
        (0.94, Direction.HIGHER_IS_BETTER, Verdict.LOSS),
        (1.06, Direction.HIGHER_IS_BETTER, Verdict.GAIN),
        (1.06, Direction.LOWER_IS_BETTER, Verdict.LOSS),
        (0.94, Direction.LOWER_IS_BETTER, Verdict.GAIN),
        (None, Direction.LOWER_IS_BETTER, Verdict.SAME),
    ],
)
def test_a_change_counts_beyond_the_threshold(
    change: float | None, direction: Direction, verdict: Verdict
) -> None:
    assert judge(change, direction, 5.0) is verdict


def test_the_medians_of_all_runs_are_compared() -> None:
    this = [burst_figures(rate) for rate in (80.0, 90.0, 200.0)]
    against = [burst_figures(rate) for rate in (100.0, 110.0, 90.0)]

    per_second, first_request = compare_runs("burst", this, against, 5.0)

    assert (per_second.figure, per_second.ratio, per_second.verdict) == (
        "system: per_second",
        0.9,
        Verdict.LOSS,
    )
    assert per_second.decisive
    assert (first_request.figure, first_request.verdict, first_request.decisive) == (
        "system: first_request_ms",
        Verdict.SAME,
        False,
    )
    assert summarize("burst", [per_second, first_request], 5.0) == "burst: LOSS in system: per_second (0.9×)"


def test_a_loss_in_a_figure_that_does_not_decide_is_no_loss_of_the_benchmark() -> None:
    comparisons = compare_runs("burst", [burst_figures(100.0, 30.0)], [burst_figures(100.0)], 5.0)

    assert [one.verdict for one in comparisons] == [Verdict.SAME, Verdict.LOSS]
    assert summarize("burst", comparisons, 5.0) == "burst: no measurable loss (within 5 %)"


def test_lists_are_compared_by_the_mean_of_the_medians_that_both_trees_have() -> None:
    def lists_figures(**medians: float) -> dict[str, Any]:
        together = {"p50": 99.0}
        return {
            "console, list": {name: {"p50": value} for name, value in medians.items()}
            | {"together": together}
        }

    this = [lists_figures(all=10.0, status=30.0, new=500.0)]
    against = [lists_figures(all=20.0, status=20.0)]

    comparisons = compare_runs("lists", this, against, 5.0)

    decisive = [one for one in comparisons if one.decisive]
    assert [(one.figure, one.this["median"], one.against["median"]) for one in decisive] == [
        ("console, list: mean of the medians", 20.0, 20.0)
    ]
    assert summarize("lists", comparisons, 5.0) == "lists: no measurable loss (within 5 %)"


def test_a_figure_that_only_one_tree_has_is_left_out() -> None:
    old = {"system": {"per_second": summarize_rounds([100.0])}}

    assert [one.figure for one in compare_runs("burst", [burst_figures(100.0)], [old], 5.0)] == [
        "system: per_second"
    ]


@pytest.mark.parametrize("name", DECISIVE)
def test_the_figures_that_decide_are_printed_by_the_benchmark(name: str) -> None:
    (path,) = (REPOSITORY / "benchmarks/results").glob(f"{name}-sqlite.json")
    figures = flatten_figures(json.loads(path.read_text())["figures"])
    add_means_of_medians([figures])

    assert set(DECISIVE[name]) <= set(figures)
    assert all(find_direction(figure) for figure in DECISIVE[name])


def test_the_last_line_of_the_output_is_the_document() -> None:
    assert parse_output('a warning\n{"figures": {}}\n') == {"figures": {}}
    with pytest.raises(BenchmarkError, match="printed no figures"):
        parse_output("")


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock"])
def test_a_commit_with_the_same_requirements_runs_with_this_python(tmp_path: Path, lock: str) -> None:
    (tmp_path / "requirements.lock").write_bytes((REPOSITORY / lock).read_bytes())
    assert find_python(tmp_path, tmp_path) == Path(sys.executable)

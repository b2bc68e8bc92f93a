"""Every benchmark runs, with sizes that show nothing, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import PROGRAMS, SMOKE
from benchmarks.figures import distribution, percentile, ratio, spread
from benchmarks.harness import REPOSITORY, turns

pytestmark = pytest.mark.sqlite_only


def run(*argv: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", *argv],
        cwd=REPOSITORY,
        env={key: value for key, value in os.environ.items() if key not in ("DATABASE_URL", "DB_PATH")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_each_prints_a_line_of_figures_and_all_leave_nothing_behind(tmp_path: Path) -> None:
    lines = run("benchmarks", "--smoke", "--folder", str(tmp_path))

    assert [line["benchmark"] for line in lines] == list(PROGRAMS)
    assert all(line["figures"] and line["on"]["database"] == "sqlite" for line in lines)
    assert not list(tmp_path.iterdir())
    assert not programs_in(tmp_path)


# One tells whether what they share still works; the others are long.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "lateness" else pytest.mark.slow) for name in PROGRAMS]
)
def test_each_runs_by_itself(name: str, tmp_path: Path) -> None:
    (line,) = run(f"benchmarks.{name}", *SMOKE[name], "--folder", str(tmp_path))

    assert line["benchmark"] == name
    assert not list(tmp_path.iterdir())
    assert not programs_in(tmp_path)


def programs_in(folder: Path) -> list[str]:
    """Commands of processes that name this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            told = (path / "environ").read_bytes() + (path / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in told and path.name != str(os.getpid()):
            found.append(told[-200:].decode(errors="replace"))
    return found


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(number) for number in range(1, 101)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile(values, 1.0) == 100
    assert percentile([], 0.5) is None
    assert distribution([3.0]) == {"count": 1, "p50": 3.0, "p95": 3.0, "p99": 3.0, "max": 3.0}


def test_rounds_are_summed_up_by_their_median_and_spread() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "least": 1.0, "most": 3.0, "rounds": [3.0, 1.0, 2.0]}
    assert ratio(3.0, 2.0) == 1.5
    assert ratio(1.0, None) is None


def test_in_each_round_another_thing_comes_first() -> None:
    assert [turns("abc", number)[0] for number in range(4)] == ["a", "b", "c", "a"]
    assert sorted(turns("abc", 2)) == ["a", "b", "c"]

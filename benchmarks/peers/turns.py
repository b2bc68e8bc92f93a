"""The order of the runs: every workload of every candidate in each round, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from benchmarks.peers.candidates import Candidate
from benchmarks.peers.results import Results
from benchmarks.peers.workloads import Figures, Workload
from benchmarks.processes import BenchmarkError
from benchmarks.report import log_progress
from benchmarks.system import rotate


class Turn(NamedTuple):
    round: int
    workload: Workload
    candidate: Candidate


Measure = Callable[[Turn], Figures]


def plan_turns(workloads: Sequence[Workload], candidates: Sequence[Candidate], rounds: int) -> Iterator[Turn]:
    """Yield all runs. Those of one workload follow each other, and each round starts with another candidate.

    A candidate whose documentation advises against many jobs in the far future has no turn with pending jobs.
    """
    for number in range(rounds):
        for workload in workloads:
            for candidate in rotate(candidates, number):
                if not (workload.far_future and candidate.far_future):
                    yield Turn(number, workload, candidate)


def take_turns(turns: Sequence[Turn], measure: Measure, results: Results) -> None:
    """Measure in turns and store each result at once. A run that fails is noted, and the next one follows."""
    for number, turn in enumerate(turns, 1):
        log_progress(f"{number} of {len(turns)}: {turn.workload.name}, {turn.candidate.name}")
        try:
            figures = measure(turn)
        except BenchmarkError as error:
            log_progress(f"failed: {error}")
            results.add_failure(turn.workload.name, turn.candidate.name, str(error))
        else:
            results.add(turn.workload.name, turn.candidate.name, figures)
        results.save()

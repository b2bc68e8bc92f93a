"""What is measured of each candidate. A workload gets a started candidate with an empty store, and returns figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.peers.candidates import Candidate, Running
from benchmarks.peers.receiver import Arrival, Receiver, StalledError
from benchmarks.peers.stores import subtract_cpu_seconds
from benchmarks.processes import (
    BenchmarkError,
    CpuUsage,
    PeakMemory,
    read_cpu_seconds,
    read_total_pss_mb,
    read_total_rss_mb,
)
from benchmarks.report import compute_percentile, log_progress

Figures = dict[str, float | None]

LEAD_SECONDS = 5.0
SETTLE_SECONDS = 0.5
MAX_SUBMIT_ATTEMPTS = 4
WARM_UP_STALL_SECONDS = 60.0
FAR_FUTURE_SECONDS = 90 * 86_400
QUIET_WINDOW_SECONDS = 0.5
MAX_QUIET_SHARE = 0.2  # of one core; an idle candidate that polls uses less
MAX_QUIET_SECONDS = 60.0


@dataclass(frozen=True)
class Sizes:
    """How much work a run is."""

    calls: int = 10_000
    pending: int = 200_000
    rate: float = 100.0
    seconds: float = 30.0
    ahead_seconds: float = 5.0
    bulk: int = 50_000
    warm_up: int = 500
    idle_seconds: float = 5.0


@dataclass(frozen=True)
class Run:
    """A started candidate and what it works on."""

    candidate: Candidate
    running: Running
    receiver: Receiver
    sizes: Sizes
    label: str  # unique, so that a late duplicate of another run is not counted here

    def warm_up(self) -> None:
        """Let the candidate work once, so that imports, connections and compilation do not count."""
        label = f"{self.label}-warm-up"
        self.running.submit(label, 0, self.sizes.warm_up, time.time())
        self._collect(label, self.sizes.warm_up, WARM_UP_STALL_SECONDS)
        self.running.settle()
        self.wait_until_quiet()

    def _collect(self, label: str, count: int, stall_seconds: float = 90.0) -> list[Arrival]:
        try:
            return self.receiver.collect(label, count, stall_seconds)
        except StalledError as error:
            raise BenchmarkError(str(error)) from None

    def wait_until_quiet(self) -> None:
        """Return when the processes use almost no CPU: what the jobs caused has been done, and outcomes are stored."""
        deadline = time.monotonic() + MAX_QUIET_SECONDS
        share = 1.0
        while share > MAX_QUIET_SHARE and time.monotonic() < deadline:
            pids = self.running.list_pids()
            before = sum(map(read_cpu_seconds, pids))
            time.sleep(QUIET_WINDOW_SECONDS)
            share = (sum(map(read_cpu_seconds, pids)) - before) / QUIET_WINDOW_SECONDS

    def submit_before_due(self, count: int) -> tuple[str, float]:
        """Queue jobs before they are due. Return their label and the time at which they are due.

        On a busy machine this may take several attempts, each with more time.
        """
        for attempt in range(MAX_SUBMIT_ATTEMPTS):
            label = f"{self.label}-burst-{attempt}"
            seconds = 2**attempt * count / self.candidate.submitted_per_second
            due = round(time.time() + LEAD_SECONDS + seconds, 3)
            self.running.submit(label, 0, count, due)
            self.running.settle()
            if time.time() < due - SETTLE_SECONDS:
                return label, due
            log_progress(f"{count} jobs could not be queued within {seconds:.0f} s; trying again")
            self._collect(label, count)
            self.wait_until_quiet()
        raise BenchmarkError(f"{count} jobs could not be queued before they were due")

    def measure_burst(self) -> Figures:
        """Measure jobs that are queued already and due at one moment, until all have arrived."""
        count = self.sizes.calls
        self.warm_up()
        time.sleep(self.sizes.idle_seconds)
        pids = self.running.list_pids()
        idle_rss, idle_pss = read_total_rss_mb(pids), read_total_pss_mb(pids)
        label, due = self.submit_before_due(count)
        time.sleep(max(0.0, due - SETTLE_SECONDS - time.time()))
        store_before, usage = self.running.store.read_cpu_seconds(), CpuUsage(self.running.list_pids())
        with (
            PeakMemory(self.running.list_pids, read_total_rss_mb) as rss,
            PeakMemory(self.running.list_pids) as pss,
        ):
            arrivals = self._collect(label, count)
            self.wait_until_quiet()
        cpu = sum(usage.seconds().values())
        store_cpu = subtract_cpu_seconds(self.running.store.read_cpu_seconds(), store_before)
        times = [arrival.time for arrival in arrivals]
        return {
            "per_second": count / (max(times) - due),
            "per_second_from_first": count / max(1e-6, max(times) - min(times)),
            "first_arrival_ms": (min(times) - due) * 1000,
            "cpu_us_per_call": cpu * 1e6 / count,
            "store_cpu_us_per_call": None if store_cpu is None else store_cpu * 1e6 / count,
            "idle_rss_mb": idle_rss,
            "peak_rss_mb": rss.mb,
            "idle_pss_mb": idle_pss,
            "peak_pss_mb": pss.mb,
        }

    def measure_burst_with_pending(self) -> Figures:
        """Measure the burst with many jobs pending for the far future."""
        self.warm_up()
        due = time.time() + FAR_FUTURE_SECONDS
        seconds = self.running.submit(f"{self.label}-pending", 0, self.sizes.pending, due)
        self.running.settle()
        self.wait_until_quiet()
        return self.measure_burst() | {"pending_submitted_per_second": self.sizes.pending / seconds}

    def measure_lateness(self) -> Figures:
        """Measure how late jobs arrive that are scheduled one by one, each a few seconds ahead."""
        self.warm_up()
        count = max(1, int(self.sizes.rate * self.sizes.seconds))
        label, ahead_ms = f"{self.label}-steady", round(self.sizes.ahead_seconds * 1000)
        behind = self.running.submit_steadily(label, count, self.sizes.rate, ahead_ms)
        late = [arrival.lateness_ms for arrival in self._collect(label, count)]
        return {
            "p50_ms": compute_percentile(late, 0.5),
            "p99_ms": compute_percentile(late, 0.99),
            "max_ms": max(late),
            "first_ms": min(late),
            "submission_behind_ms": behind,
        }

    def measure_submission(self) -> Figures:
        """Measure how fast jobs for the far future are accepted, in batches as large as the candidate takes."""
        self.warm_up()
        due = time.time() + FAR_FUTURE_SECONDS
        seconds = self.running.submit(f"{self.label}-bulk", 0, self.sizes.bulk, due)
        return {"per_second": self.sizes.bulk / seconds}


@dataclass(frozen=True)
class Workload:
    name: str
    title: str
    measure: Callable[[Run], Figures]
    far_future: bool = False  # whether the workload leaves many jobs pending


WORKLOADS = (
    Workload("burst", "Burst of jobs that are due at one moment", Run.measure_burst),
    Workload("pending", "The burst with jobs pending", Run.measure_burst_with_pending, far_future=True),
    Workload("lateness", "Lateness under a steady load", Run.measure_lateness),
    Workload("submission", "Submission in bulk", Run.measure_submission),
)


def find_workloads(names: list[str]) -> list[Workload]:
    """Return the workloads with these names, or all. Raise ValueError for an unknown name."""
    known = {workload.name: workload for workload in WORKLOADS}
    if unknown := set(names) - set(known):
        raise ValueError(f"no workload is called {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    return [workload for workload in WORKLOADS if not names or workload.name in names]

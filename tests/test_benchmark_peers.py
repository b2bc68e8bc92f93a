"""The comparison with other job queues: its turns, its record of arrivals, its results, tables and plots."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks.command_line import find_service_url
from benchmarks.huey_peer import ask_redis
from benchmarks.peers.__main__ import build_parser, choose_sizes
from benchmarks.peers.candidates import CANDIDATES, find_candidates
from benchmarks.peers.environments import NODE_SOURCES, PYTHON_LOCKS, find_environment
from benchmarks.peers.plot import Group, Value, compute_length, render_bars
from benchmarks.peers.python.driver import Job, submit_batches, submit_steadily
from benchmarks.peers.receiver import Receiver, StalledError, parse_arrival, split_requests, start_receiver
from benchmarks.peers.report import (
    BEGIN,
    CHARTS,
    END,
    build_table,
    format_markdown,
    format_report,
    render_plot,
    replace_section,
    write_plots,
)
from benchmarks.peers.results import Results, find_newest_results, load_results
from benchmarks.peers.stores import parse_redis_cpu, subtract_cpu_seconds
from benchmarks.peers.turns import Turn, plan_turns, take_turns
from benchmarks.peers.workloads import WORKLOADS, Figures, Sizes, find_workloads
from benchmarks.processes import REPOSITORY, BenchmarkError

pytestmark = pytest.mark.sqlite_only

BURST, PENDING = find_workloads(["burst", "pending"])


# --- turns ----------------------------------------------------------------------------------------------------


def test_candidates_take_turns_and_each_round_starts_with_another_one() -> None:
    turns = list(plan_turns([BURST], CANDIDATES, 3))

    assert [turn.candidate for turn in turns if turn.round == 0] == list(CANDIDATES)
    assert [turns[number * len(CANDIDATES)].candidate for number in range(3)] == list(CANDIDATES[:3])
    assert set(Counter(turn.candidate.name for turn in turns).values()) == {3}


def test_a_candidate_that_is_not_made_for_the_far_future_has_no_turn_with_pending_jobs() -> None:
    excused = {candidate.name for candidate in CANDIDATES if candidate.far_future}
    measured = {turn.candidate.name for turn in plan_turns([PENDING], CANDIDATES, 1)}

    assert excused == {"Celery"}
    assert measured == {candidate.name for candidate in CANDIDATES} - excused


def test_a_failed_run_is_noted_and_the_next_one_follows(tmp_path: Path) -> None:
    results = create_results(tmp_path / "results.json")
    first, second = CANDIDATES[:2]

    def measure(turn: Turn) -> Figures:
        if turn.candidate is first:
            raise BenchmarkError("it did not start")
        return {"per_second": 1.0}

    take_turns(list(plan_turns([BURST], [first, second], 1)), measure, results)

    stored = load_results(tmp_path / "results.json")
    assert stored.figures == {"burst": {second.name: [{"per_second": 1.0}]}}
    assert [failure["candidate"] for failure in stored.failures] == [first.name]


def test_candidates_are_found_by_a_part_of_their_name() -> None:
    assert [one.name for one in find_candidates(["sqlite", "boss"])] == ["Event Service, SQLite", "pg-boss"]
    assert find_candidates([]) == list(CANDIDATES)
    with pytest.raises(ValueError, match="no candidate is called 'kafka'"):
        find_candidates(["kafka"])
    with pytest.raises(ValueError, match="no workload is called nap"):
        find_workloads(["nap"])


def test_an_option_changes_one_size_of_a_preset() -> None:
    sizes = choose_sizes(build_parser().parse_args(["--quick", "--calls", "7", "--rate", "2.5"]))

    assert (sizes.calls, sizes.rate) == (7, 2.5)
    assert sizes.pending < Sizes().pending


# --- arrivals -------------------------------------------------------------------------------------------------


def test_requests_are_split_however_they_arrive() -> None:
    request = b"POST /a?job=1&due=2 HTTP/1.1\r\nHost: x\r\nContent-length: 3\r\n\r\nabc"

    assert split_requests(request[:-1]) == ([], request[:-1])
    assert split_requests(request * 2 + b"PO") == ([request[:-7]] * 2, b"PO")
    assert split_requests(b"GET / HTTP/1.1\r\n\r\n") == ([b"GET / HTTP/1.1"], b"")


def test_lateness_is_the_time_since_the_job_was_due() -> None:
    arrival = parse_arrival("1700000000.250000 /run-1-burst?due=1700000000000&job=7")

    assert (arrival.label, arrival.job) == ("run-1-burst", 7)
    assert arrival.lateness_ms == pytest.approx(250, abs=0.01)


def send(receiver: Receiver, label: str, *jobs: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=10)
    for job in jobs:
        connection.request("POST", f"/{label}?due=1000&job={job}", b"y" * 200)
        assert connection.getresponse().read() == b'{"ok":true}'
    connection.close()


def test_the_receiver_counts_each_job_of_a_label_once(tmp_path: Path) -> None:
    with start_receiver(tmp_path) as receiver:
        send(receiver, "other", 1)
        send(receiver, "mine", 1, 1, 2)

        assert [arrival.job for arrival in receiver.collect("mine", 2, 10.0)] == [1, 2]
        with pytest.raises(StalledError, match="3 of 3 requests of mine"):
            receiver.collect("mine", 3, 0.2)


# --- drivers --------------------------------------------------------------------------------------------------


class RecordingSubmitter:
    batch_size = 4

    def __init__(self, connections: int) -> None:
        self.connections = connections
        self.batches: list[list[Job]] = []

    def prepare(self) -> None: ...

    def settle(self) -> None: ...

    def submit(self, jobs: Any) -> None:
        self.batches.append(list(jobs))


@pytest.mark.parametrize("connections", [1, 3])
def test_jobs_are_submitted_in_batches(connections: int) -> None:
    submitter = RecordingSubmitter(connections)
    submit_batches(submitter, "http://x/label", first=10, count=9, due=5000)

    assert sorted(map(len, submitter.batches)) == [1, 4, 4]
    assert {job.url for batch in submitter.batches for job in batch} == {
        f"http://x/label?due=5000&job={number}" for number in range(10, 19)
    }


def test_steady_jobs_have_due_times_of_their_own() -> None:
    submitter = RecordingSubmitter(1)
    submit_steadily(submitter, "http://x/label", count=3, rate=100.0, ahead=5000)

    due = sorted(job.due_ms for (job,) in submitter.batches)
    assert [round(later - due[0], -1) for later in due] == [0, 10, 20]


def test_locks_of_the_peers_have_hashes_and_name_no_registry() -> None:
    lock = json.loads((NODE_SOURCES / "package-lock.json").read_text())
    hashes = [about["integrity"] for name, about in lock["packages"].items() if name]
    assert len(hashes) > 50
    assert all(each.startswith("sha512-") for each in hashes)
    assert "http" not in json.dumps(lock)
    for path in PYTHON_LOCKS.glob("*.lock"):
        text = path.read_text()
        packages = re.findall(r"^[\w.-]+==", text, re.M)
        assert len(re.findall(r"==.*\\\n    --hash=sha256:", text)) == len(packages) > 5
        assert not re.search(r"https?:|file:|--(extra-)?index-url|--find-links", text)


def test_every_candidate_has_a_version_and_says_what_it_keeps() -> None:
    for candidate in CANDIDATES:
        assert re.search(r"\d|unknown", candidate.read_version()), candidate.name
        assert all(vars(candidate.record).values())


def test_changed_packages_have_another_environment(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    lock.write_text("a")
    before = find_environment("x", lock)
    assert find_environment("x", lock) == before
    lock.write_text("b")
    assert find_environment("x", lock) != before


# --- CPU time of the stores -----------------------------------------------------------------------------------


def test_a_server_process_that_started_in_between_counts_in_full() -> None:
    assert subtract_cpu_seconds({"1": 3.0, "2": 1.0}, {"1": 2.5, "3": 9.0}) == pytest.approx(1.5)
    assert subtract_cpu_seconds(None, {"1": 1.0}) is None


def test_the_cpu_time_of_redis_is_that_of_user_and_system() -> None:
    assert parse_redis_cpu("# CPU\r\nused_cpu_sys:1.5\r\nused_cpu_user:2.25\r\n") == 3.75


# --- results, tables and plots --------------------------------------------------------------------------------


def create_results(path: Path) -> Results:
    about = {
        "version": "1", "store": "Redis", "settings": "a|b", "far_future": None,
        "record": {"outcome": "kept", "attempt_log": "no", "events": "no", "acknowledgement": "after a commit"},
    }  # fmt: skip
    return Results(
        {"rounds": 2, **vars(Sizes())},
        {"Event Service, SQLite": about, "pg-boss": about, "huey": about},
        path,
    )


@pytest.fixture
def results(tmp_path: Path) -> Results:
    results = create_results(tmp_path / "20260101-000000.json")
    for rate in (1000.0, 3000.0):
        results.add(
            "burst",
            "Event Service, SQLite",
            {"per_second": rate, "store_cpu_us_per_call": 0.0, "cpu_us_per_call": 9.0},
        )
        results.add(
            "burst", "pg-boss", {"per_second": 4000.0, "store_cpu_us_per_call": None, "cpu_us_per_call": 5.0}
        )
    results.add("lateness", "pg-boss", {"p50_ms": 100.0, "p99_ms": 400.0, "max_ms": 500.0, "first_ms": 0.5})
    return results


def find_chart(name: str) -> Any:
    return next(chart for chart in CHARTS if chart.name == name)


def test_a_table_shows_medians_ranges_and_the_ratio_to_the_reference(results: Results) -> None:
    header, ours, reference = build_table(results, find_chart("burst"))

    assert header[:3] == ["", "calls/s", "× pg-boss"]
    assert ours[:3] == ["Event Service, SQLite", "2,000 (1,000–3,000)", "0.5"]
    assert reference[:3] == ["pg-boss", "4,000 (4,000–4,000)", "1"]


def test_results_are_the_same_after_storing(results: Results) -> None:
    results.save()
    stored = load_results(results.path)

    assert stored == results
    assert find_newest_results(results.path.parent) == results.path
    with pytest.raises(FileNotFoundError, match="make bench NAME=peers"):
        find_newest_results(results.path.parent / "absent")


def test_markdown_cells_do_not_break_the_table() -> None:
    assert format_markdown([["", "x"], ["a|b", "1"]]) == "|  | x |\n|---|---:|\n| a\\|b | 1 |"


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_each_plot_is_valid_svg_with_a_bar_for_each_figure(results: Results, chart: Any) -> None:
    document = ElementTree.fromstring(render_plot(results, chart))
    texts = [element.text for element in document.iter("{http://www.w3.org/2000/svg}text")]
    measured = [name for name in results.candidates if name in texts]

    assert document.tag == "{http://www.w3.org/2000/svg}svg"
    expected = {
        "burst": ["Event Service, SQLite", "pg-boss"],
        "lateness": ["pg-boss"],
        "cpu": ["Event Service, SQLite", "pg-boss"],
    }
    assert measured == expected.get(chart.name, [])


def test_bars_are_as_long_as_their_values() -> None:
    assert compute_length(50, 100, 1, logarithmic=False) == 0.5
    assert [compute_length(value, 100, 1, logarithmic=True) for value in (0.1, 1, 100)] == pytest.approx(
        [0, 1 / 3, 1]
    )
    assert compute_length(0, 100, 1, logarithmic=True) == 0


def test_a_value_that_was_not_measured_has_no_bar() -> None:
    group = Group("<peer>", [Value(2, 1, 3), None])
    svg = render_bars("Title", "ms", ["p50", "p99"], [group])

    assert "&lt;peer&gt;" in svg
    assert ">–<" in svg


def test_the_report_replaces_only_its_section_of_a_page(results: Results, tmp_path: Path) -> None:
    page = f"# Performance\n\n{BEGIN}\nold\n{END}\n\nend\n"
    replaced = replace_section(page, format_report(results, "plots"))

    assert replaced.startswith("# Performance\n")
    assert replaced.endswith(f"{END}\n\nend\n")
    assert "old" not in replaced
    assert "![Burst of 10,000 jobs](plots/burst.svg)" in replaced
    assert "(plots/pending.svg)" not in replaced
    with pytest.raises(ValueError, match="the page has no lines"):
        replace_section("# Performance", "x")
    write_plots(results, tmp_path / "plots")
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"burst.svg", "lateness.svg", "cpu.svg"}


def test_the_page_has_a_place_for_the_results() -> None:
    replace_section((REPOSITORY / "docs" / "performance.md").read_text(), "x")


# --- real runs ------------------------------------------------------------------------------------------------


def run_comparison(folder: Path, *arguments: str) -> dict[str, Any]:
    result = subprocess.run(
        [
            sys.executable, "-m", "benchmarks.peers", "--smoke", "--rounds", "1",
            "--folder", str(folder), "--results", str(folder / "results"), *arguments,
        ],
        cwd=REPOSITORY,
        env={key: value for key, value in os.environ.items() if key not in ("DATABASE_URL", "DB_PATH")},
        capture_output=True,
        text=True,
        timeout=1500,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    document: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return document


@pytest.mark.slow
def test_event_service_runs_all_workloads(tmp_path: Path) -> None:
    document = run_comparison(tmp_path, "--candidates", "sqlite")

    assert list(document["figures"]) == [workload.name for workload in WORKLOADS]
    (burst,) = document["figures"]["burst"]["Event Service, SQLite"]
    assert burst["per_second"] > 0
    assert burst["peak_rss_mb"] > burst["peak_pss_mb"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [candidate.name for candidate in CANDIDATES[2:]])
def test_each_peer_runs_a_burst(name: str, tmp_path: Path) -> None:
    if ask_redis(urlsplit(find_service_url("redis")), "PING") != "+PONG":
        pytest.skip("needs PostgreSQL and Redis: make services")
    document = run_comparison(tmp_path, "--candidates", name, "--workloads", "burst")

    (burst,) = document["figures"]["burst"][name]
    assert burst["per_second"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["results"]

"""Each test runs a supervisor in a separate process, with real children, and reads its output."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

DRIVER = """
import json, sys
from eventservice.devtools.supervisor import Process, Supervisor
children, grace = json.loads(sys.argv[1])
sys.exit(Supervisor([Process(name, ["sh", "-c", script], {"GREETING": "hello"}) for name, script in children],
                    grace=grace).run())
"""
PATIENT = "echo ready $$; exec sleep 60"
# Ignores SIGTERM, and so does the sleep that it waits for.
STUBBORN = "trap '' TERM; echo ready $$; while :; do sleep 60; done"


def wait_until(condition: Callable[[], object], seconds: float = 8.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Running:
    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self._output = output

    @property
    def text(self) -> str:
        return self._output.read_text()

    def wait_for(self, pattern: str, times: int = 1) -> list[str]:
        """Wait until the pattern has matched `times` times. Return the matches of its group."""
        wait_until(lambda: len(re.findall(pattern, self.text)) >= times)
        return re.findall(pattern, self.text)

    def pids(self, count: int) -> list[int]:
        return [int(pid) for pid in self.wait_for(r"ready (\d+)\n", count)]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


@contextmanager
def started(command: list[str], stdout: IO[bytes] | int) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdout=stdout) as process:
        try:
            yield process
        finally:
            process.kill()  # after a failed test; its children follow it


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


@contextmanager
def supervising(output: Path, grace: float = 30.0, **children: str) -> Iterator[Running]:
    command = [sys.executable, "-c", DRIVER, json.dumps([list(children.items()), grace])]
    with output.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            yield Running(process, output)
        finally:
            process.terminate()
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:  # a test has failed: end its children too
                process.send_signal(signal.SIGINT)
                process.wait(2)


def test_each_line_carries_the_name_of_its_process(output: Path) -> None:
    with supervising(
        output, web="echo $GREETING; echo oops >&2; sleep 60", engine="printf unended; sleep 60"
    ) as up:
        up.wait_for("oops")
        up.signal(signal.SIGTERM)
        up.process.wait(8)

    assert "web    | hello\nweb    | oops\n" in up.text
    assert "engine | unended\n" in up.text


def test_names_are_colored_only_on_a_terminal(output: Path) -> None:
    reader, terminal = pty.openpty()
    command = [sys.executable, "-c", DRIVER, json.dumps([[["web", "echo hi; sleep 60"]], 5])]
    with started(command, terminal) as process:
        os.close(terminal)
        text = b""
        while b"hi" not in text:
            text += os.read(reader, 1024)
        process.terminate()
        process.wait(8)
    os.close(reader)

    assert text.startswith(b"\x1b[36mweb |\x1b[0m hi")


def test_a_process_that_exits_is_restarted_with_a_growing_backoff(output: Path) -> None:
    with supervising(output, engine="echo ready $$; exit 3", web=PATIENT) as up:
        first, second = up.wait_for(r"engine exited with 3; restarting in ([\d.]+) s", 2)[:2]
        starts = up.text.count("engine | ready")

    assert (first, second) == ("0.5", "1")
    assert starts == 2
    assert up.text.count("web    | ready") == 1


def test_a_process_killed_by_a_signal_is_reported_and_restarted(output: Path) -> None:
    with supervising(output, engine="kill -9 $$") as up:
        up.wait_for("engine was killed by SIGKILL; restarting in")


def test_a_missing_command_is_reported_and_the_others_run(output: Path) -> None:
    driver = (
        "from eventservice.devtools.supervisor import Process, Supervisor\n"
        "Supervisor([Process('gone', ['/no/such/program']), Process('web', ['sleep', '60'])]).run()"
    )
    with output.open("wb") as file, started([sys.executable, "-c", driver], file) as process:
        up = Running(process, output)
        up.wait_for("gone cannot start: .*No such file", 2)
        up.signal(signal.SIGTERM)
        process.wait(8)

    assert "web was killed by SIGTERM" in up.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_all_processes_on_a_signal_and_exits_with_0(output: Path, number: int) -> None:
    with supervising(output, web=PATIENT, engine=PATIENT) as up:
        pids = up.pids(2)
        up.signal(number)
        assert up.process.wait(8) == 0

    assert not any(is_alive(pid) for pid in pids)


def test_a_process_can_use_the_grace_period(output: Path) -> None:
    careful = "trap 'sleep 0.3; echo all saved; exit 0' TERM; echo ready $$; while :; do sleep 0.05; done"
    with supervising(output, engine=careful) as up:
        up.pids(1)
        up.signal(signal.SIGTERM)
        assert up.process.wait(8) == 0

    assert "engine | all saved\n" in up.text


def test_a_process_that_exceeds_the_grace_period_is_killed(output: Path) -> None:
    with supervising(output, grace=0.3, engine=STUBBORN) as up:
        (pid,) = up.pids(1)
        up.signal(signal.SIGTERM)
        assert up.process.wait(8) == 1

    assert not is_alive(pid)
    assert "killing engine\n" in up.text


def test_a_second_ctrl_c_kills_immediately(output: Path) -> None:
    with supervising(output, grace=60, engine=STUBBORN) as up:
        (pid,) = up.pids(1)
        up.signal(signal.SIGINT)
        up.wait_for("stopping")
        up.signal(signal.SIGINT)
        assert up.process.wait(8) == 1

    assert not is_alive(pid)


def test_workers_do_not_outlive_their_leader(output: Path) -> None:
    with supervising(output, engine="sh -c 'echo ready $$; kill -9 $PPID; sleep 60' & wait") as up:
        up.wait_for("engine was killed by SIGKILL")
        worker = up.pids(1)[0]
        wait_until(lambda: not is_alive(worker))


def test_processes_do_not_outlive_a_killed_supervisor(output: Path) -> None:
    with supervising(output, web=PATIENT, engine=PATIENT) as up:
        pids = up.pids(2)
        up.process.kill()
        wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_it_stops_when_its_output_is_closed(output: Path) -> None:
    chatty = "while :; do echo more; sleep 0.01; done"
    command = [sys.executable, "-c", DRIVER, json.dumps([[["web", chatty]], 5])]
    with started(command, subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(8) == 0


def test_target_and_supervisor_start_without_django() -> None:
    script = "import sys, eventservice.devtools.mock_target, eventservice.devtools.supervisor; sys.exit('django' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0

"""A test run leaves no folder behind: when it ends, when it is interrupted, and at last when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.conf import settings

from tests.temporary_folders import PREFIX

# A test of this file reads the database, so that the run has one.
TESTS = "tests/test_data_model.py"
Start = Callable[..., "subprocess.Popen[str]"]


def restore_ctrl_c() -> None:
    """Undo what a shell does to its jobs in the background: they ignore SIGINT, and so do their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a test run with a worker process, whose temporary folders are in `tmp_path`."""
    runs = []

    def start_run(*arguments: str) -> subprocess.Popen[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        command = [sys.executable, "-m", "pytest", "-n", "1", "-p", "no:cacheprovider", *arguments]
        run = subprocess.Popen(
            command, cwd=settings.BASE_DIR, env={**kept, "TMPDIR": str(tmp_path)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=restore_ctrl_c,
        )  # fmt: skip
        runs.append(run)
        return run

    yield start_run
    for run in runs:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        assert run.stdout
        run.stdout.close()


def list_folders(parent: Path) -> list[str]:
    return [folder.name for folder in parent.iterdir() if folder.name.startswith(PREFIX)]


def wait_for_database(run: subprocess.Popen[str], parent: Path) -> None:
    deadline = time.monotonic() + 60
    while not [*parent.glob(f"{PREFIX}*/gw0/test.db")]:
        assert run.poll() is None, run.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_run_that_is_interrupted_removes_its_folder(start: Start, tmp_path: Path) -> None:
    run = start(TESTS)
    wait_for_database(run, tmp_path)
    os.killpg(run.pid, signal.SIGINT)  # as Ctrl-C does
    output, _ = run.communicate(timeout=60)
    assert "KeyboardInterrupt" in output
    assert list_folders(tmp_path) == []


@pytest.mark.slow
def test_the_next_run_removes_the_folder_of_one_that_was_killed(start: Start, tmp_path: Path) -> None:
    killed = start(TESTS)
    wait_for_database(killed, tmp_path)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert len(list_folders(tmp_path)) == 1

    output, _ = start(TESTS).communicate(timeout=300)
    assert "passed" in output
    assert list_folders(tmp_path) == []

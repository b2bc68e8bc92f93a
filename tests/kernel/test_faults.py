"""Seams that do nothing, until FAULTS says at which of them the process is to fail, and how."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from eventservice.kernel import faults

PROGRAM = """
from eventservice.kernel.faults import trigger_fault
for _ in range(3):
    print("before", flush=True)
    trigger_fault("here")
    print("after", flush=True)
"""


def run(setting: str) -> subprocess.Popen[str]:
    env = {**os.environ, "FAULTS": setting}
    return subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, text=True, stdout=subprocess.PIPE)


def arm(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setattr(faults, "_armed", faults._parse(setting))


def test_a_process_is_killed_where_it_stands() -> None:
    process = run("here=kill")
    output, _ = process.communicate(timeout=10)
    assert process.returncode == -signal.SIGKILL
    assert output == "before\n"


def test_only_the_nth_pass_fails() -> None:
    process = run("here=kill@3")
    output, _ = process.communicate(timeout=10)
    assert process.returncode == -signal.SIGKILL
    assert output.splitlines() == ["before", "after"] * 2 + ["before"]


def test_a_process_is_frozen_and_goes_on_when_it_is_woken() -> None:
    process = run("here=stop@1")
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 0
    assert output.count("after") == 3


def test_nothing_happens_unless_it_is_asked_for() -> None:
    process = run("")
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 0
    assert output.count("after") == 3


def test_it_raises_each_time_at_the_named_point_only(monkeypatch: pytest.MonkeyPatch) -> None:
    arm(monkeypatch, "here=raise, there=delay:0")
    faults.trigger_fault("there")
    faults.trigger_fault("elsewhere")
    for _ in range(2):
        with pytest.raises(faults.InjectedFault, match="here"):
            faults.trigger_fault("here")


def test_it_raises_on_the_second_pass_and_on_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    arm(monkeypatch, "here=raise@2")
    faults.trigger_fault("here")
    with pytest.raises(faults.InjectedFault):
        faults.trigger_fault("here")
    faults.trigger_fault("here")


def test_it_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    arm(monkeypatch, "here=delay:0.05")
    begun = time.monotonic()
    faults.trigger_fault("here")
    assert time.monotonic() - begun >= 0.05


@pytest.mark.parametrize(
    "wrong", ["here", "here=explode", "here=", "=kill", "here=delay:soon", "here=kill@twice"]
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(wrong: str) -> None:
    with pytest.raises(ValueError, match="FAULTS: "):
        faults._parse(wrong)

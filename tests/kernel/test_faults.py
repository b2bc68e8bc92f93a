"""Fault points do nothing until FAULTS says at which of them the process fails, and how."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from django.core.exceptions import ImproperlyConfigured

from eventservice.kernel import faults
from eventservice.kernel.env import Environment

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


def test_a_process_is_stopped_and_goes_on_after_sigcont() -> None:
    process = run("here=stop@1")
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 0
    assert output.count("after") == 3


def test_nothing_happens_without_faults() -> None:
    process = run("")
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 0
    assert output.count("after") == 3


def test_a_point_raises_each_time_and_no_other_point_does(monkeypatch: pytest.MonkeyPatch) -> None:
    arm(monkeypatch, "here=raise, there=delay:0")
    faults.trigger_fault("there")
    faults.trigger_fault("elsewhere")
    for _ in range(2):
        with pytest.raises(faults.InjectedFault, match="here"):
            faults.trigger_fault("here")


def test_a_point_raises_on_its_second_pass_only(monkeypatch: pytest.MonkeyPatch) -> None:
    arm(monkeypatch, "here=raise@2")
    faults.trigger_fault("here")
    with pytest.raises(faults.InjectedFault):
        faults.trigger_fault("here")
    faults.trigger_fault("here")


def test_a_point_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    arm(monkeypatch, "here=delay:0.05")
    begun = time.monotonic()
    faults.trigger_fault("here")
    assert time.monotonic() - begun >= 0.05


@pytest.mark.parametrize(
    "wrong", ["here", "here=explode", "here=", "=kill", "here=delay:soon", "here=kill@twice"]
)
def test_a_value_that_cannot_be_parsed_is_refused(wrong: str) -> None:
    env = Environment({"FAULTS": wrong})
    faults.check_faults(env, production=False)
    with pytest.raises(ImproperlyConfigured, match=r"FAULTS: .* must be point=kill"):
        env.check()


def test_faults_are_refused_in_production() -> None:
    env = Environment({"FAULTS": "start.sent=kill"})
    faults.check_faults(env, production=False)
    env.check()
    faults.check_faults(env, production=True)
    with pytest.raises(ImproperlyConfigured, match="FAULTS must be unset when ENVIRONMENT is production"):
        env.check()

"""deploy/systemd: units that systemd accepts, with what the processes need.

tests/deploy/test_commands.py executes their commands. That systemd restricts the processes is not shown.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from django.conf import settings

from tests.deploy.manifests import DEPLOY, Unit, read_unit

FILES = sorted((DEPLOY / "systemd").iterdir())
UNITS = {path.name: read_unit(path) for path in FILES}
SERVICES = {name: unit for name, unit in UNITS.items() if "Service" in unit}
DAEMONS = {name: unit for name, unit in SERVICES.items() if "Type" not in unit["Service"]}
HOME = "srv/eventservice"
# Units of every machine, which the units here refer to.
TARGETS = ("sysinit", "basic", "shutdown", "multi-user", "network-online", "timers")

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Return a folder that looks like the root of a machine on which the units are installed."""
    installed = tmp_path / "etc/systemd/system"
    shutil.copytree(DEPLOY / "systemd", installed)
    system = tmp_path / "usr/lib/systemd/system"
    system.mkdir(parents=True)
    for name in TARGETS:
        (system / f"{name}.target").write_text("[Unit]\nDescription=A target\n")
    programs = tmp_path / HOME / ".venv/bin"
    programs.mkdir(parents=True)
    for name in ("python", "gunicorn"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    return tmp_path


def verify(name: str, machine: Path) -> tuple[int, str]:
    """Return the exit status of systemd-analyze and its complaints."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", f"--root={machine}", name], capture_output=True, text=True
    )
    return done.returncode, done.stderr


@needs_systemd
@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_the_unit(name: str, machine: Path) -> None:
    assert verify(name, machine) == (0, "")


@needs_systemd
def test_systemd_would_report_a_typing_error_and_a_missing_program(machine: Path) -> None:
    path = machine / "etc/systemd/system/eventservice-web.service"
    path.write_text(path.read_text().replace("ProtectClock=", "ProtectClok="))
    assert "ProtectClok" in verify(path.name, machine)[1]
    (machine / HOME / ".venv/bin/gunicorn").unlink()
    assert verify(path.name, machine)[0] != 0


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_starts_only_as_production_and_writes_only_its_data(name: str) -> None:
    service = SERVICES[name]["Service"]
    assert service["User"] == ["eventservice"]
    assert service["Environment"] == ["ENVIRONMENT=production"]
    assert service["WorkingDirectory"] == [f"/{HOME}"]
    assert service["UMask"] == ["0077"]
    assert service["ProtectSystem"] == ["strict"]
    assert service["ReadWritePaths"] == [f"/{HOME}/data"]
    assert service["NoNewPrivileges"] == ["yes"]
    assert service["CapabilityBoundingSet"] == [""]


def test_all_services_are_restricted_in_the_same_way() -> None:
    sandboxes = [list_restrictions(unit) for unit in SERVICES.values()]
    assert len(sandboxes) == 3
    assert len(sandboxes[0]) > 15
    assert all(sandbox == sandboxes[0] for sandbox in sandboxes)


def list_restrictions(unit: Unit) -> dict[str, list[str]]:
    pattern = re.compile(r"(Protect|Restrict|Private|System|Lock|NoNew|Capability|UMask|ReadWrite)")
    return {name: value for name, value in unit["Service"].items() if pattern.match(name)}


@pytest.mark.parametrize("name", DAEMONS)
def test_a_daemon_is_always_restarted_and_has_the_time_that_it_needs_to_stop(name: str) -> None:
    unit = DAEMONS[name]
    assert unit["Service"]["Restart"] == ["always"]
    assert unit["Unit"]["StartLimitIntervalSec"] == ["0"]
    assert int(unit["Service"]["TimeoutStopSec"][0]) > settings.SHUTDOWN_SECONDS + 10
    assert unit["Install"]["WantedBy"] == ["multi-user.target"]


def test_the_cluster_may_open_a_connection_for_each_attempt_in_flight() -> None:
    (limit,) = SERVICES["eventservice-cluster.service"]["Service"]["LimitNOFILE"]
    assert int(limit) > settings.ENGINE_IN_FLIGHT


def test_a_timer_starts_the_service_of_its_name() -> None:
    timers = {name for name in UNITS if name.endswith(".timer")}
    assert timers == {"eventservice-prune.timer"}
    assert "eventservice-prune.service" in SERVICES.keys() - DAEMONS.keys()

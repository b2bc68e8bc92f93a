"""django-q2's commands are the project's: `qcluster` runs the system, `qinfo` shows it, and the monitors say what to use."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command, get_commands
from django_q.brokers import get_broker

from eventservice.db.dialects import get_dialect
from eventservice.db.now import DbNow
from eventservice.kernel.env import MAX_CLUSTER_NAME_LENGTH
from eventservice.kernel.ids import new_id
from eventservice.management.commands import cluster
from eventservice.runtime.models import Slot
from eventservice.runtime.slots import cluster_name, rename_cluster, slot_name
from timers.membership import Membership
from timers.models import Node, NodeRole


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record the names of the slots of each cluster that would be started."""
    before = cluster_name()
    names: list[str] = []

    def start() -> int:
        names.append(slot_name("engine"))
        return 0

    monkeypatch.setattr(cluster, "run_cluster", start)
    monkeypatch.setattr(cluster, "require_tables", lambda: None)  # it would close the connection of the test
    monkeypatch.setattr(
        get_dialect(), "relax_durability", lambda: None
    )  # it would last for the tests that follow
    yield names
    rename_cluster(before)


def run_info(*arguments: str) -> str:
    out = StringIO()
    call_command("qinfo", *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.parametrize("name", ["qcluster", "qinfo", "qmemory", "qmonitor"])
def test_the_project_replaces_the_command(name: str) -> None:
    assert get_commands()[name] == "eventservice"


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["cluster", "qcluster"])
def test_both_commands_start_the_same(name: str, started: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        call_command(name)
    assert (ended.value.code, started) == (0, ["eventservice/engine"])


@pytest.mark.django_db
def test_the_option_name_is_the_name_of_the_queue_and_of_the_slots(started: list[str]) -> None:
    with pytest.raises(SystemExit):
        call_command("qcluster", "--name", "blue")
    assert started == ["blue/engine"]
    assert get_broker().list_key == "blue"


@pytest.mark.parametrize(
    "name", ["x" * (MAX_CLUSTER_NAME_LENGTH + 1), "", "a/b", "two words", "-blue", "bleu\u00e9"]
)
def test_a_name_that_breaks_the_rule_is_refused(name: str, started: list[str]) -> None:
    with pytest.raises(CommandError, match=r"--name: .* is no name of a cluster: expected 1 to 29 letters"):
        call_command("qcluster", f"--name={name}")
    assert not started


def test_the_variable_of_django_q_names_the_cluster() -> None:
    program = (
        "import django; django.setup(); from django_q.conf import Conf; from eventservice.runtime.slots import cluster_name;"
        "print(Conf.CLUSTER_NAME, cluster_name())"
    )
    env = {**os.environ, "Q_CLUSTER_NAME": "blue", "DJANGO_SETTINGS_MODULE": "eventservice.settings"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=settings.BASE_DIR,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["blue", "blue"], done.stderr


@pytest.mark.django_db
def test_the_live_nodes_and_the_queue_are_shown() -> None:
    node = Membership(NodeRole.ENGINE)
    node.join()
    shown = run_info()
    assert f"live   engine  {socket.gethostname()}" in shown
    assert "Queue eventservice: 0 waiting, 0 taken by workers" in shown
    assert run_info("--ids").split() == [str(node.owner_id)]


@pytest.mark.django_db
def test_columns_in_which_nothing_would_stand_are_left_out() -> None:
    Membership(NodeRole.ENGINE).join()
    assert run_info().splitlines()[0].split() == ["STATE", "ROLE", "HOST", "PROCESS", "STARTED"]
    Node.objects.update(in_flight=3, cluster="blue", version="older")
    assert run_info().splitlines()[0].split() == [
        *("STATE", "ROLE", "CLUSTER", "HOST", "PROCESS", "IN", "FLIGHT", "STARTED", "VERSION")
    ]


@pytest.mark.django_db
def test_the_roles_of_each_cluster_are_shown_with_their_holders_and_standbys() -> None:
    for name, role in (
        ("blue", NodeRole.ENGINE),
        ("blue", NodeRole.STANDBY),
        ("green", NodeRole.DISPATCHER),
    ):
        Membership(role, name).join()
    until = {"owner_id": new_id(), "lease_until": DbNow(timedelta(seconds=8)), "taken_at": DbNow()}
    Slot.objects.create(name="blue/engine", **until)
    Slot.objects.create(name="green/dispatcher", **until)
    Slot.objects.create(name="green/engine", taken_at=DbNow())
    lines = run_info().splitlines()
    process = f"{socket.gethostname()} {os.getpid()}"
    (blue,) = [line for line in lines if line.startswith("blue/engine")]
    assert blue.count(process) == 2
    (green,) = [line for line in lines if line.startswith("green/engine")]
    assert "nobody" in green
    assert [line for line in lines if line.startswith("waiting  standby")]
    for name in ("blue", "green"):
        assert f"Queue {name}: 0 waiting, 0 taken by workers" in lines
    assert max(map(len, lines[:8])) <= 80


@pytest.mark.django_db
def test_without_a_node_the_command_to_start_one_is_shown() -> None:
    shown = run_info()
    assert shown.startswith("No process is running on ")
    assert "No engine is running: calls are accepted and stored, but not sent." in shown
    assert "Start one with `manage.py cluster` (or `manage.py poll_timers`)." in shown
    assert "Start one with `manage.py cluster` (or `manage.py dispatch_outbox`)." in shown


def test_the_configuration_is_shown_without_secrets() -> None:
    shown = run_info("--config")
    assert "workers: 2" in shown
    assert settings.SECRET_KEY not in shown


@pytest.mark.parametrize(("name", "instead"), [("qmonitor", "qinfo"), ("qmemory", "/metrics")])
def test_a_monitor_that_would_be_empty_says_what_to_use(name: str, instead: str) -> None:
    with pytest.raises(CommandError, match=instead):
        call_command(name)


@pytest.mark.django_db
def test_the_leftovers_of_a_cluster_that_does_not_run_are_explained() -> None:
    for name in ("blue", "green"):
        Slot.objects.create(name=f"{name}/engine", taken_at=DbNow())
    assert "Not running" not in run_info()
    Membership(NodeRole.ENGINE, "green").join()
    shown = run_info()
    assert "Not running: blue." in shown
    assert "no longer shown 7 days after its last slice" in shown

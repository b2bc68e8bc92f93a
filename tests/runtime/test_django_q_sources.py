"""django-q2 is pinned to the versions whose internals this project replaces or leans on, and a change of them is noticed."""

from __future__ import annotations

import hashlib
import inspect
import tomllib
from collections.abc import Callable
from importlib.metadata import version

import django_q
import django_q.brokers.orm
import django_q.cluster
import django_q.conf
import django_q.monitor
import django_q.pusher
import django_q.queues
import django_q.scheduler
import django_q.tasks
import django_q.timeout
import django_q.worker
import pytest
from django.conf import settings
from django_q.cluster import Cluster, Sentinel
from django_q.management.commands import qcluster, qmemory, qmonitor
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from eventservice.runtime.checks import FIRST_UNKNOWN_DJANGO_Q, MIN_DJANGO_Q, check_django_q_version

# The SHA-256 of each source that was reviewed, shortened, and what depends on it.
PATCH = "eventservice/runtime/django_q_patch.py"
REVIEWED: dict[Callable[..., object], tuple[str, str]] = {
    Cluster.__init__: ("140f22e15d69", f"{PATCH}: GracefulCluster is built without arguments, and is its signals' handler"),
    Cluster.start: ("70fbc24e3cd7", f"{PATCH}: GracefulCluster.run waits for the sentinel that this starts"),
    Cluster.stop: ("0230e6a459b6", f"{PATCH}: GracefulCluster.sig_handler replaces it"),
    Sentinel.__init__: ("6ddfa0bde90a", f"{PATCH}: GracefulSentinel.start replaces its stop_event"),
    Sentinel.start: ("ad6269e4eb57", f"{PATCH}: GracefulSentinel.start calls it with SIGTERM ignored"),
    Sentinel.spawn_process: ("0f72360b891e", f"{PATCH}: GracefulSentinel.spawn_process, run_worker (args[2] is the timer)"),
    Sentinel.spawn_worker: ("3c4764964efe", f"{PATCH}: run_worker gets these arguments"),
    Sentinel.spawn_pusher: ("5f65985ea44d", f"{PATCH}: run_pusher gets these arguments"),
    Sentinel.spawn_monitor: ("68880937857c", f"{PATCH}: run_monitor gets these arguments"),
    Sentinel.reincarnate: ("1c3dc62b7aa3", f"{PATCH}: a worker whose timer is 0 is terminated and replaced"),
    Sentinel.spawn_cluster: ("254756e3c191", f"{PATCH}: the order in which processes are forked"),
    Sentinel.guard: ("b48dce5446f6", f"{PATCH}: GracefulSentinel.guard, and the countdown of ClusterProcess"),
    Sentinel.stop: ("d858ef90cdaa", f"{PATCH}: GracefulSentinel.stop replaces it"),
    django_q.queues.Queue: ("4b08355a8520", f"{PATCH}: PlayingQueue takes tasks from it without waiting"),
    django_q.worker.worker: ("b30d59f639b0", f"{PATCH}: run_worker, whose PlayingQueue has the one method it needs; ClusterProcess.extend_task_deadline sets its timer"),
    django_q.pusher.pusher: ("6975acb3fb8d", f"{PATCH}: run_pusher; PatientBroker keeps it alive"),
    django_q.monitor.monitor: ("e45d60ca1db6", f"{PATCH}: run_monitor"),
    django_q.scheduler.scheduler: ("d18181953d9d", "eventservice/runtime/cluster.py: what runs each minute"),
    django_q.tasks.async_task: ("6c3548750390", "eventservice/runtime/cluster.py: slices are enqueued in the ticket's transaction"),
    django_q.timeout.TimeoutHandler: ("67e05c6217eb", "eventservice/runtime/cluster_process.py: the alarm of a task is set again"),
    django_q.brokers.orm.ORM: ("cbed1739f36c", "eventservice/runtime/broker.py: DatabaseClockBroker replaces most of it"),
    qcluster.Command: ("e123d61842e0", "eventservice/management/commands/qcluster.py: its options"),
    qmemory.Command: ("4f6a62d7071b", "eventservice/management/commands/qmemory.py: its options"),
    qmonitor.Command: ("65a829f2fff2", "eventservice/management/commands/qmonitor.py: its options"),
}  # fmt: skip


def compute_hash(function: Callable[..., object]) -> str:
    return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:12]


@pytest.mark.parametrize("function", REVIEWED, ids=lambda function: function.__qualname__)
def test_the_source_is_the_one_that_was_reviewed(function: Callable[..., object]) -> None:
    reviewed, user = REVIEWED[function]
    name = f"{function.__module__}.{function.__qualname__}"
    assert compute_hash(function) == reviewed, (
        f"{name} of django-q2 {version('django-q2')} is not what was reviewed. Compare it with the version before, review"
        f" {user}, run `make chaos`, and store the new hash here."
    )


def test_pyproject_pins_these_versions() -> None:
    project = tomllib.loads((settings.BASE_DIR / "pyproject.toml").read_text())["project"]
    (pin,) = [r for r in map(Requirement, project["dependencies"]) if r.name == "django-q2"]
    oldest, unknown = (".".join(map(str, found)) for found in (MIN_DJANGO_Q, FIRST_UNKNOWN_DJANGO_Q))
    assert pin.specifier == SpecifierSet(f">={oldest},<{unknown}")


def test_the_installed_version_is_supported_and_says_the_same_in_both_places() -> None:
    assert ".".join(map(str, django_q.VERSION)) == version("django-q2")
    assert check_django_q_version() == []


@pytest.mark.parametrize("installed", [(1, 10, 0), (1, 12, 0), (2, 0, 0)])
def test_another_version_is_refused_at_start(
    installed: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(django_q, "VERSION", installed)
    (error,) = check_django_q_version()
    assert error.id == "eventservice.E011"
    assert ".".join(map(str, installed)) in error.msg


@pytest.mark.parametrize("installed", [(1, 11, 0), (1, 11, 9)])
def test_the_versions_of_the_pin_are_accepted(
    installed: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(django_q, "VERSION", installed)
    assert check_django_q_version() == []

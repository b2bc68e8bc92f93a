"""A release replaces the one before it while calls keep coming: no request fails, and no call is lost or sent twice.

The release before is the code in git from before the newest migration. Its processes go on while the new code migrates the
database, and then the new processes take over.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db.models import Count, Max, Min

from eventservice.client import ApiError, Client, Unreachable
from eventservice.db.now import DbNow
from orchestration.models import ServiceCall
from orchestration.states import Status
from outbox.models import WAITING, OutboxEvent
from tests.db.migration_walk import temporary_database
from tests.process_harness import (
    ProcessHarness,
    Program,
    RecordingTarget,
    find_free_address,
    is_serving,
    wait_until,
)
from timers.models import Node

ROOT = settings.BASE_DIR
# Calls that must arrive in each phase of the upgrade.
CALLS_PER_PHASE = 60
CALLS_PER_SECOND = 40


def run_git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, check=True).stdout


def find_previous_release() -> str:
    """Return the commit before the newest migration: the last one if that is not committed yet."""
    migrations = ":(glob)**/migrations/0*.py"
    if run_git("status", "--porcelain", "--", migrations):
        return "HEAD"
    newest = run_git("log", "-1", "--format=%H", "--diff-filter=A", "--", migrations).decode().strip()
    return run_git("rev-parse", "--verify", f"{newest}^").decode().strip()


@pytest.fixture
def previous(tmp_path: Path) -> Path:
    """Return a folder with the code of the release before."""
    try:
        archive = run_git("archive", find_previous_release())
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the release before is not in the history of git here: {error.stderr.decode().strip()}")
    folder = tmp_path / "previous"
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return folder


class Release:
    """A folder with code, whose processes and commands use the database of the test."""

    def __init__(self, folder: Path, harness: ProcessHarness) -> None:
        self.folder, self._harness = folder, harness
        self._env = {"PYTHONPATH": str(folder)}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        env = {**self._harness.env, **self._env}
        return subprocess.run(
            [sys.executable, "manage.py", *command], cwd=self.folder, env=env, capture_output=True, text=True
        )

    def start_cluster(self) -> Program:
        return self._start("cluster", [sys.executable, "manage.py", "cluster"])

    def start_web(self) -> tuple[Program, str]:
        """Start two web processes, and return their URL once they serve."""
        address = find_free_address()
        options = ["-c", "python:eventservice.runtime.gunicorn_config", "--workers", "2", "--bind", address]
        web = self._start("web", [sys.executable, "-m", "gunicorn", *options, "eventservice.wsgi"])
        wait_until(lambda: is_serving(f"http://{address}"), "the web processes serve")
        return web, f"http://{address}"

    def _start(self, name: str, argv: list[str]) -> Program:
        # `python -m` looks for modules in the working directory first.
        return self._harness.start(name, ["env", f"--chdir={self.folder}", *argv], **self._env)


class Load:
    """A client that keeps submitting calls until it is stopped. It repeats nothing, so that no failure is hidden."""

    def __init__(self, url: str, tenant_id: str, key: str, target: RecordingTarget) -> None:
        self.url = url
        self.accepted: set[str] = set()
        self.failures: list[str] = []
        self._tenant_id, self._key, self._target = tenant_id, key, target
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(1 / CALLS_PER_SECOND):
            client = Client(self.url, self._tenant_id, self._key, retries=0)
            try:
                call = client.submit("upgrade", "POST", f"{self._target.url}/delay/0.2")
                self.accepted.add(call["serviceCallId"])
            except (ApiError, Unreachable) as error:
                self.failures.append(str(error))

    def wait_until_more_arrived(self) -> None:
        """Wait until the target has received the calls of a phase, of which some were submitted in it."""
        before, accepted = self._target.count_requests(), len(self.accepted)
        wait_until(
            lambda: (
                self._target.count_requests() >= before + CALLS_PER_PHASE
                and len(self.accepted) >= accepted + CALLS_PER_PHASE
            ),
            "calls are accepted and arrive",
        )


def create_tenant_and_key(release: Release) -> tuple[str, str]:
    created = release.run("shell", "-v0", "-c", CREATE)
    assert created.returncode == 0, created.stderr
    tenant_id, key = created.stdout.split()
    return tenant_id, key


CREATE = """
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.keys import create_key
tenant = create_tenant("acme")
print(tenant.tenant_id, create_key(tenant.tenant_id, ["read", "write"])[1])
"""


def read_versions() -> set[str]:
    """Return the versions of the code of the engines and dispatchers that live."""
    return set(Node.objects.filter(lease_until__gt=DbNow()).values_list("version", flat=True))


@pytest.fixture
def harness(
    tmp_path: Path, django_db_modify_db_settings: None, django_db_blocker: Any
) -> Iterator[ProcessHarness]:
    """Return a harness whose database is empty, without a table."""
    with django_db_blocker.unblock(), temporary_database("upgrade"):
        harness = ProcessHarness(tmp_path)
        try:
            yield harness
        finally:
            harness.close()


def test_an_upgrade_under_load_refuses_no_request_and_loses_no_call(
    harness: ProcessHarness, previous: Path
) -> None:
    old, new = Release(previous, harness), Release(ROOT, harness)
    assert old.run("migrate", "-v0").returncode == 0
    assert new.run("migrate", "--check").returncode == 1, "there is nothing to migrate"
    target = harness.start_target()
    tenant_id, key = create_tenant_and_key(old)
    old_web, old_url = old.start_web()
    old_cluster = old.start_cluster()

    with Load(old_url, tenant_id, key, target) as load:
        load.wait_until_more_arrived()
        migration = new.run("migrate", "-v0")
        assert migration.returncode == 0, migration.stderr
        # What a pod of the old release asks before it starts.
        assert old.run("migrate", "--check").returncode == 0
        old_versions = read_versions()
        load.wait_until_more_arrived()  # by the old code, on the new schema

        new_web, load.url = new.start_web()
        harness.stop(old_web)
        new_cluster = new.start_cluster()
        wait_until(lambda: len(read_versions()) == 2, "processes of both releases live")
        load.wait_until_more_arrived()  # by both
        harness.stop(old_cluster)
        wait_until(lambda: old_versions.isdisjoint(read_versions()), "only the new code works")
        load.wait_until_more_arrived()

    wait_until(lambda: not ServiceCall.across_tenants.exclude(status=Status.SUCCEEDED).exists(), "all ended")
    wait_until(lambda: not OutboxEvent.across_tenants.filter(WAITING).exists(), "all events are published")
    harness.stop(new_web, new_cluster)
    assert load.failures == []
    assert [program.exit_code for program in (old_web, old_cluster, new_web, new_cluster)] == [0, 0, 0, 0]
    sent = target.group_by_call()
    assert sent.keys() == load.accepted
    assert {call: len(requests) for call, requests in sent.items() if len(requests) > 1} == {}
    assert_event_sequences_are_complete(load.accepted)


def assert_event_sequences_are_complete(calls: set[str]) -> None:
    events = OutboxEvent.across_tenants.values("aggregate_id")
    numbered = events.annotate(first=Min("aggregate_seq"), last=Max("aggregate_seq"), count=Count("id"))
    sequences = {str(row["aggregate_id"]): row for row in numbered}
    assert sequences.keys() == calls
    for row in sequences.values():
        assert (row["first"], row["last"]) == (1, row["count"])

"""A backup that was taken under load restores, with dispatch paused, and goes on when it is resumed (property P15).

The backup is taken with the tools that docs/operations.md names. The target is the witness of what is sent.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection

from eventservice.db.now import DbNow
from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from orchestration.states import Status
from outbox.models import OutboxEvent
from tests.databases import get_database_name
from tests.db.migration_walk import temporary_database
from tests.process_harness import (
    ProcessHarness,
    build_call,
    build_database_environment,
    harness,
    submit_calls,
    wait_until,
    wait_until_all_ended,
)
from tests.services import find_tool
from timers.models import Node, NodeRole
from timers.pause import find_pause

__all__ = ["harness"]

pytestmark = pytest.mark.django_db(transaction=True)


# The options with which docs/operations.md backs up.
DUMP = {
    "postgresql": ["pg_dump", "--format=custom"],
    "mariadb": ["mariadb-dump", "--single-transaction"],
    "mysql": ["mysqldump", "--single-transaction", "--set-gtid-purged=OFF", "--no-tablespaces"],
}


def build_server_command(program: str, *options: str) -> list[str]:
    """Return a command of the server's own tools with the options that connect it to the default database."""
    place = connection.settings_dict
    access = [f"--host={place['HOST']}", f"--port={place['PORT']}"]
    user = f"{'--username' if connection.vendor == 'postgresql' else '--user'}={place['USER']}"
    return [*find_program(program), *access, user, *options]


def find_program(name: str) -> list[str]:
    """Return the command of the installed tool if it suits the server, or else of the one that the services came with."""
    if (installed := shutil.which(name)) and suits_server(installed):
        return [installed]
    database = get_database_name()
    return find_tool("postgres18" if database == "postgresql" else database, name)


def suits_server(tool: str) -> bool:
    version = subprocess.run([tool, "--version"], check=True, capture_output=True, text=True).stdout
    if connection.vendor != "postgresql":
        # MySQL refuses MariaDB's dumps, which have values for generated columns.
        return ("MariaDB" in version) == (get_database_name() == "mariadb")
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version_num")
        server = int(cursor.fetchone()[0]) // 10_000
    # pg_dump refuses servers that are newer than itself.
    return int(version.split()[2].partition(".")[0]) >= server


def build_server_environment() -> dict[str, str]:
    password = str(connection.settings_dict["PASSWORD"])
    return {**os.environ, "PGPASSWORD": password, "MYSQL_PWD": password}


def start_backup(file: Path) -> subprocess.Popen[bytes]:
    name = str(connection.settings_dict["NAME"])
    if connection.vendor == "sqlite":
        environment = {**os.environ, **build_database_environment()}
        command = [sys.executable, "manage.py", "backup", str(file)]
        return subprocess.Popen(command, cwd=settings.BASE_DIR, env=environment)
    program, *options = DUMP[get_database_name()]
    output = f"--{'file' if connection.vendor == 'postgresql' else 'result-file'}={file}"
    command = build_server_command(program, *options, output, name)
    return subprocess.Popen(command, env=build_server_environment())


def restore(file: Path) -> None:
    """Restore a backup to the default database, which is empty."""
    name = str(connection.settings_dict["NAME"])
    connection.close()
    if connection.vendor == "sqlite":
        environment = {**os.environ, **build_database_environment()}
        command = [sys.executable, "manage.py", "restore", str(file)]
        subprocess.run(command, check=True, cwd=settings.BASE_DIR, env=environment)
    elif connection.vendor == "postgresql":
        command = build_server_command("pg_restore", "--no-owner", f"--dbname={name}", str(file))
        subprocess.run(command, check=True, env=build_server_environment())
    else:
        with file.open("rb") as dump:
            subprocess.run(
                build_server_command(get_database_name(), name),
                check=True,
                stdin=dump,
                env=build_server_environment(),
            )


def list_calls(**filters: Any) -> set[str]:
    ids = ServiceCall.across_tenants.filter(**filters).values_list("service_call_id", flat=True)
    return set(map(str, ids))


def list_other_nodes(known: Collection[UUID]) -> list[Node]:
    return list(Node.objects.exclude(owner_id__in=known))


def test_a_backup_that_was_taken_under_load_restores_paused_and_goes_on_when_it_is_resumed(
    harness: ProcessHarness, tmp_path: Path
) -> None:
    target, tenant_id = harness.start_target(), create_tenant("acme").tenant_id
    programs = [harness.start_engine(), harness.start_dispatcher()]
    file = tmp_path / "backup"

    def submit(count: int) -> set[str]:
        due = (random.uniform(-1, 8) for _ in range(count))
        return set(submit_calls(build_call(tenant_id, target.url, due_in) for due_in in due))

    accepted_before = submit(100)
    wait_until(lambda: target.count_requests() > 10, "calls are sent")
    backup = start_backup(file)
    while backup.poll() is None:
        submit(10)
        time.sleep(0.1)  # all of them have to end after the restore
    assert backup.returncode == 0
    submit(10)
    harness.stop(*programs)

    with temporary_database("restored"):
        restore(file)
        assert accepted_before <= list_calls()
        to_send = list_calls(status__in=[Status.SCHEDULED, Status.RUNNING])
        assert to_send
        sent_before = target.count_requests()
        nodes_of_backup = list(Node.objects.values_list("owner_id", flat=True))
        start_paused(harness, nodes_of_backup)
        scheduled = ServiceCall.across_tenants.filter(status=Status.SCHEDULED)
        # Calls are due that were not when the backup was taken.
        wait_until(lambda: not scheduled.filter(due_at__gt=DbNow()).exists(), "all calls are due")
        wait_until(passes_of(2, nodes_of_backup), "the nodes have looked for work")
        wait_until(lambda: list_calls(status=Status.SCHEDULED) == to_send, "interrupted calls are scheduled")
        assert target.count_requests() == sent_before
        call_command("dispatch", "resume", verbosity=0)
        wait_until_all_ended()
        assert list_calls(status=Status.SUCCEEDED) == list_calls()
        # The target writes its record a little later than it answers.
        wait_until(lambda: target.count_requests() >= sent_before + len(to_send), "the requests are recorded")
        sent = {request.call_id for request in target.list_requests()[sent_before:]}
        assert sent == to_send
        wait_until(
            lambda: not OutboxEvent.across_tenants.filter(published_at=None).exists(), "events are published"
        )
        harness.stop(*harness.programs[-2:])


def start_paused(harness: ProcessHarness, known: Collection[UUID]) -> None:
    """Start both roles, beside nodes that are known. On a server, the setting pauses dispatch; on SQLite, the restore has."""

    def has_node(role: NodeRole) -> bool:
        return any(node.role == role for node in list_other_nodes(known))

    setting = {} if connection.vendor == "sqlite" else {"DISPATCH": "paused"}
    assert (find_pause() is not None) == (not setting)
    environment = {**build_database_environment(), **setting}
    harness.start_engine(**environment)
    wait_until(lambda: has_node(NodeRole.ENGINE), "the engine has joined")
    assert find_pause() is not None
    harness.start_dispatcher(**environment)
    wait_until(lambda: has_node(NodeRole.DISPATCHER), "the dispatcher has joined")


def passes_of(heartbeats: int, known: Collection[UUID]) -> Callable[[], bool]:
    """Return a condition that holds when each node that is not known has sent so many heartbeats."""
    seen: dict[Any, set[Any]] = {}

    def has_passed() -> bool:
        for node in list_other_nodes(known):
            seen.setdefault(node.pk, set()).add(node.lease_until)
        return len(seen) >= 2 and all(len(leases) > heartbeats for leases in seen.values())

    return has_passed

"""`manage.py move_database` moves everything from SQLite to a server, however often it is killed, and sends nothing twice."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection

from eventservice.kernel.ids import new_id
from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from outbox.models import OutboxEvent
from tests.db.migration_walk import temporary_database
from tests.process_harness import (
    ProcessHarness,
    build_database_environment,
    harness,
    wait_until,
)
from timers.models import Node, TimerShard
from timers.pause import find_pause

__all__ = ["harness"]

pytestmark = pytest.mark.django_db(transaction=True)

SETUP = "import django, json, sys; django.setup()\n"
# Rows in every state in every table, as the migrations are tested with. Those of django-q2 check what they are saved with.
FILL = f"""{SETUP}
from django.apps import apps
from tests.db.sample_rows import SampleRows, list_models
left_out = {{"django_q", "timers.dispatchpause"}}
SampleRows().fill(m for m in list_models(apps) if not {{m._meta.app_label, m._meta.label_lower}} & left_out)
"""
SUBMIT = f"""{SETUP}
from tests.process_harness import build_call, submit_calls
from eventservice.tenants.directory import create_tenant
tenant_id = create_tenant("acme").tenant_id
ids = []
for due_in in [-1.0, 3600.0]:
    for _ in range(3):
        ids += submit_calls(build_call(tenant_id, sys.argv[1], due_in) for _ in range(200))
print(json.dumps(ids))
"""
DUMP = f"""{SETUP}
from django.apps import apps
from tests.db.migration_walk import read_rows
for label, rows in sorted(read_rows(apps).items()):
    if label != "timers.dispatchpause":
        for key in sorted(rows, key=str):
            print(label, json.dumps(rows[key], sort_keys=True, default=str))
"""


def run_process(
    environment: dict[str, str], *command: str, faults: str = ""
) -> subprocess.CompletedProcess[str]:
    variables = {
        **os.environ, **environment, "FAULTS": faults, "DJANGO_SETTINGS_MODULE": "eventservice.settings",
        "PYTHONPATH": str(settings.BASE_DIR), "EGRESS_ALLOW": "127.0.0.0/8:*",
    }  # fmt: skip
    argv = [sys.executable, *command]
    return subprocess.run(
        argv, cwd=settings.BASE_DIR, env=variables, capture_output=True, text=True, check=False
    )


def run_program(environment: dict[str, str], *program: str) -> str:
    done = run_process(environment, "-c", *program)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Move:
    """A move from an SQLite file to the default database, which is an empty one."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.source = {"DB_PATH": str(file), "DATABASE_URL": ""}
        self.target = build_database_environment()

    def run(self, *options: str, faults: str = "") -> subprocess.CompletedProcess[str]:
        options = options or ("--to", self.target["DATABASE_URL"])
        return run_process(self.source, "manage.py", "move_database", *options, faults=faults)

    def complete(self) -> None:
        done = self.run()
        assert done.returncode == 0, done.stderr

    def fail(self, *options: str) -> str:
        done = self.run(*options)
        assert done.returncode == 1, done.stdout
        return done.stderr

    def read_source(self) -> list[str]:
        """Return the rows of the source, of a copy that the service accepts."""
        copy = self.file.with_name("copy.db")
        shutil.copy(self.file, copy)
        with closing(sqlite3.connect(copy)) as raw:
            raw.execute("PRAGMA application_id = 0")
        return run_program({**self.source, "DB_PATH": str(copy)}, DUMP).splitlines()

    def read_target(self) -> list[str]:
        return run_program(self.target, DUMP).splitlines()


@pytest.fixture
def move(tmp_path: Path) -> Iterator[Move]:
    if connection.vendor == "sqlite":
        pytest.skip("the target is a server")
    with temporary_database("moved"):
        connection.close()
        move = Move(tmp_path / "source.db")
        done = run_process(move.source, "manage.py", "migrate", "-v0")
        assert done.returncode == 0, done.stderr
        yield move


def test_a_move_that_is_killed_at_every_point_loses_and_changes_nothing(move: Move) -> None:
    run_program(move.source, FILL)
    refused = "was replaced by a backup, or moved"
    for fault in (
        "move.source_marked=kill", "move.target_marked=kill", "move.written=kill@3", "move.committed=kill@9",
        "move.finished=kill",
    ):  # fmt: skip
        assert move.run(faults=fault).returncode == -9, fault
    # Nobody can start the service on the source by mistake.
    assert refused in run_process(move.source, "manage.py", "tenant", "list").stderr
    assert "already" in move.run().stdout
    source, target = move.read_source(), move.read_target()
    assert len(source) > 300
    assert target == source
    pause = find_pause()
    assert pause is not None
    assert pause.reason.startswith("Moved from SQLite")
    # New rows get new numbers, also after rows that were deleted before the move.
    last = OutboxEvent.across_tenants.order_by("-id").first()
    assert last is not None
    fresh = OutboxEvent(
        **{field.attname: getattr(last, field.attname) for field in OutboxEvent._meta.concrete_fields}
    )
    fresh.pk, fresh.event_id, fresh.aggregate_seq = None, new_id(), last.aggregate_seq + 1
    fresh.save(force_insert=True)
    assert fresh.pk > last.pk


def test_pending_calls_are_sent_once_each_by_the_target(move: Move, harness: ProcessHarness) -> None:
    target = harness.start_target()
    ids = json.loads(run_program(move.source, SUBMIT, target.url))
    assert len(ids) == 1200
    # Killed in the middle of tables that take several batches, at times that nobody chose.
    for _ in range(3):
        program = harness.start_command(
            "move", "move_database", "--to", move.target["DATABASE_URL"], **move.source
        )
        # A move that was killed late does not copy the first tables again, and may end before it is killed.
        wait_until(
            lambda program=program: "copying" in program.log or not program.is_running,  # type: ignore[misc]
            "rows are copied",
        )
        wait_until(lambda: random.random() < 0.1, "a moment has passed")
        program.kill_group()
    move.complete()
    assert Counter(map(str, ServiceCall.across_tenants.values_list("service_call_id", flat=True))) == Counter(
        ids
    )
    harness.start_engine(**move.target)
    wait_until(lambda: TimerShard.objects.exclude(owner_id=None).count() == 16, "the engine owns the shards")
    engine = Node.objects.get()
    wait_until(lambda: Node.objects.get().lease_until > engine.lease_until, "the engine has looked")
    assert target.count_requests() == 0
    call_command("dispatch", "resume", verbosity=0)
    wait_until(lambda: target.count_requests() >= 600, "the calls that are due are sent")
    wait_until(
        lambda: ServiceCall.across_tenants.filter(status="Succeeded").count() == 600, "they are recorded"
    )
    sent = Counter(request.call_id for request in target.list_requests())
    assert set(sent) < set(ids)
    assert set(sent.values()) == {1}
    assert ServiceCall.across_tenants.filter(status="Scheduled").count() == 600


def test_a_target_with_other_data_is_refused(move: Move) -> None:
    assert run_process(move.target, "manage.py", "migrate", "-v0").returncode == 0
    create_tenant("resident")
    message = move.fail()
    assert "has other data, in" in message
    assert "tenants" in message
    # Nothing was changed: the service may use the source.
    assert run_process(move.source, "manage.py", "tenant", "list").returncode == 0


def test_a_target_with_tables_of_something_else_is_refused(move: Move) -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE shop_orders (id integer)")
    assert "has tables of something else: shop_orders" in move.fail()


def test_a_source_in_use_is_refused(move: Move) -> None:
    with closing(sqlite3.connect(move.file)) as user:
        user.execute("SELECT COUNT(*) FROM tenants").fetchone()
        assert f"is in use by process {os.getpid()} " in move.fail()


def test_a_move_can_be_given_up_until_it_is_complete(move: Move) -> None:
    run_program(move.source, FILL)
    assert "is not being moved" in move.fail("--cancel")
    assert move.run(faults="move.committed=kill@20").returncode == -9
    assert move.run("--cancel").returncode == 0
    listed = run_process(move.source, "manage.py", "dispatch", "status")
    assert "was canceled" in listed.stdout
    # What the canceled move has copied is other data for the next one.
    assert "other data" in move.fail()


def test_an_incomplete_target_cannot_be_used(move: Move) -> None:
    run_program(move.source, FILL)
    assert move.run(faults="move.committed=kill@20").returncode == -9
    refusal = "target of a move from SQLite that has not been completed"
    gunicorn = ("-m", "gunicorn", "-b", "127.0.0.1:0", "-c", "python:eventservice.runtime.gunicorn_config")
    for command in (
        ("manage.py", "cluster"), ("manage.py", "poll_timers", "--once"), ("manage.py", "dispatch_outbox", "--once"),
        ("manage.py", "dispatch", "resume"), (*gunicorn, "eventservice.wsgi"),
    ):  # fmt: skip
        done = run_process(move.target, *command)
        assert (done.returncode, refusal in done.stderr, "Traceback" in done.stderr) == (1, True, False), done
    findings = json.loads(run_process(move.target, "manage.py", "doctor", "--json").stdout)["findings"]
    assert [refusal in found["advice"] for found in findings if found["name"] == "dispatch"] == [True]
    move.complete()
    assert run_process(move.target, "manage.py", "dispatch", "resume").returncode == 0


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:////tmp/other.db", "--to must be a database on PostgreSQL, MariaDB or MySQL"),
        ("oracle://x/y", "--to has the scheme 'oracle'"),
        ("postgres://nobody:secret@127.0.0.1:1/x", "--to: the database cannot be reached"),
    ],
)
def test_a_wrong_url_is_refused_without_its_password(move: Move, url: str, message: str) -> None:
    found = move.fail("--to", url)
    assert message in found
    assert "secret" not in found


def test_a_server_is_no_source(move: Move) -> None:
    done = run_process(move.target, "manage.py", "move_database", "--to", move.target["DATABASE_URL"])
    assert "moves from SQLite" in done.stderr

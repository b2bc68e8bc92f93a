"""The stage of the chaos suites: real processes on the database of the run, and a target that writes down what
reached it.

A suite judges by the target's file, and by the ids that `submit` had accepted, never by our database alone.
Processes are killed, frozen and thawed by their pid; whatever is left of them ends with the stage.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import UUID

import pytest
from django.conf import settings
from django.db import OperationalError, connection, transaction

from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.lifecycle import submit
from orchestration.models import ServiceCall
from orchestration.states import TERMINAL
from tests.database_clock import running_clock
from timers.models import Node, TimerShard

T = TypeVar("T")

DISPATCHER = """
import django; django.setup()
from eventservice.runtime.wiring import build_dispatcher
role = build_dispatcher()
while True: role.step(0.2)
"""


@pytest.fixture
def stage(transactional_db: None, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    try:
        yield stage
    finally:
        stage.close()


@pytest.fixture
def chance() -> random.Random:
    """CHAOS_SEED=n replays a failure."""
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(10**6))
    say(f"CHAOS_SEED={seed}")
    return random.Random(seed)


def say(what: str) -> None:
    """Shown by pytest -s, and beside a failure."""
    sys.stdout.write(what + "\n")


def until(condition: Callable[[], T | None], what: str, seconds: float = 90.0) -> T:
    """The condition's first truth. The time is a safety net and no promise."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain: {what}"
        time.sleep(0.02)
    return found


# --- processes ------------------------------------------------------------------------------------------------


class Program:
    """A process of ours, in a process group of its own."""

    def __init__(self, argv: list[str], log: Path, env: dict[str, str]) -> None:
        self.log_path = log
        with log.open("ab") as file:
            self._popen = subprocess.Popen(
                argv, stdout=file, stderr=file, env=env, cwd=settings.BASE_DIR, start_new_session=True
            )
        self.pid = self._popen.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._popen.poll()

    @property
    def frozen(self) -> bool:
        return _state(self.pid) == "T"

    def children(self) -> list[int]:
        """The living processes of its group but itself."""
        return [pid for pid in _pids() if pid != self.pid and _group(pid) == self.pid and _state(pid) != "Z"]

    def kill(self) -> None:
        """SIGKILL to it alone."""
        self._popen.kill()
        self._popen.wait()

    def kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()

    def freeze(self) -> None:
        self._popen.send_signal(signal.SIGSTOP)
        until(lambda: self.frozen or not self.running, "it freezes")

    def thaw(self) -> None:
        self._popen.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        self._popen.terminate()

    def wait(self, seconds: float = 60.0) -> int:
        return self._popen.wait(seconds)


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["X", "0", "0"]


def _state(pid: int) -> str:
    return _stat(pid)[0]


def _group(pid: int) -> int:
    return int(_stat(pid)[2])


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def database_of_the_run() -> dict[str, str]:
    """The environment that makes another process use this test's database."""
    database = connection.settings_dict
    if connection.vendor == "sqlite":
        return {"DB_PATH": str(database["NAME"]), "DATABASE_URL": ""}
    user = quote(database["USER"]) + (f":{quote(database['PASSWORD'])}" if database["PASSWORD"] else "")
    address = database["HOST"] + (f":{database['PORT']}" if database["PORT"] else "")
    return {"DATABASE_URL": f"{connection.vendor}://{user}@{address}/{database['NAME']}"}


class Stage:
    """Starts processes, and ends all that are left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs: list[Program] = []
        self.witnesses: list[Witness] = []
        self.env = {
            **os.environ,
            **database_of_the_run(),
            "DJANGO_SETTINGS_MODULE": "eventservice.settings",
            "EGRESS_ALLOW": "127.0.0.0/8:*",
            "PYTHONPATH": str(settings.BASE_DIR),
            "PYTHONUNBUFFERED": "1",
            "SHUTDOWN_SECONDS": "10",
        }

    def start(self, name: str, argv: list[str], **env: str) -> Program:
        log = self.folder / f"{name}-{len(self.programs)}.log"
        program = Program(argv, log, {**self.env, **env})
        self.programs.append(program)
        return program

    def manage(self, name: str, *command: str, **env: str) -> Program:
        return self.start(name, [sys.executable, "manage.py", *command], **env)

    def engine(self, faults: str = "", **env: str) -> Program:
        return self.manage("engine", "poll_timers", FAULTS=faults, **env)

    def dispatcher(self, faults: str = "", **env: str) -> Program:
        return self.start("dispatcher", [sys.executable, "-c", DISPATCHER], FAULTS=faults, **env)

    def cluster(self, faults: str = "", **env: str) -> Program:
        return self.manage("cluster", "cluster", FAULTS=faults, **env)

    def witness(self, host: str = "127.0.0.1") -> Witness:
        number = len(self.witnesses)
        record = self.folder / f"witness-{number}.jsonl"
        argv = [
            sys.executable,
            "-m",
            "eventservice.devtools.mock_target",
            "--host",
            host,
            "--record",
            str(record),
        ]
        program = self.start("target", argv)
        url = until(lambda: re.search(r"listening on (\S+)", program.log), "the target listens")[1]
        self.witnesses.append(Witness(url, record))
        return self.witnesses[-1]

    def stop(self, *programs: Program) -> None:
        """Cleanly, all at once."""
        for program in programs:
            program.terminate()
        for program in programs:
            program.wait()

    def close(self) -> None:
        for program in self.programs:
            program.kill_group()
        # Shown by pytest beside a failure.
        for program in self.programs[-8:]:
            lines = [line for line in program.log.splitlines() if line and line[0] not in "{["]
            say("\n".join([f"--- {program.log_path.stem}", *lines[-12:]]))


# --- the witness ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as it reached the target."""

    time: float
    path: str
    call: str
    attempt: int
    key: str | None


class Witness:
    def __init__(self, url: str, record: Path) -> None:
        self.url = url
        self._record = record

    def sent(self) -> list[Sent]:
        """All that has been received so far, in that order."""
        lines = self._record.read_text().splitlines(keepends=True)
        return [_sent(json.loads(line)) for line in lines if line.endswith("\n")]

    def by_call(self) -> dict[str, list[Sent]]:
        found = defaultdict(list)
        for sent in self.sent():
            found[sent.call].append(sent)
        return found

    def calls(self) -> set[str]:
        return {sent.call for sent in self.sent()}

    def count(self) -> int:
        return self._record.read_bytes().count(b"\n")

    def most_connections(self) -> int:
        with urllib.request.urlopen(f"{self.url}/stats") as answer:
            return int(json.load(answer)["most_connections"])


def _sent(line: dict[str, Any]) -> Sent:
    return Sent(
        line["time"],
        line["path"],
        line["service_call_id"] or "",
        int(line["attempt"] or 0),
        line["idempotency_key"],
    )


# --- calls ----------------------------------------------------------------------------------------------------


def call(tenant_id: UUID, url: str, due_in: float | None = None, **terms: Any) -> SubmitServiceCall:
    due_at = None if due_in is None else running_clock() + timedelta(seconds=due_in)
    return SubmitServiceCall(
        tenant_id, "chaos", RequestSpec("POST", url, {}, {"x": 1}), due_at=due_at, **terms
    )


def accept(commands: Iterable[SubmitServiceCall]) -> list[str]:
    """Submit; the ids that were accepted."""
    return [str(submitted.service_call_id) for submitted in submit(list(commands))]


def unfinished() -> int:
    return ServiceCall.across_tenants.exclude(status__in=TERMINAL).count()


def until_all_have_ended(seconds: float = 120.0) -> None:
    until(lambda: unfinished() == 0, "all calls come to their end", seconds)


def free_to_write() -> bool:
    """Whether no frozen process holds SQLite's only write lock."""
    if connection.vendor != "sqlite":
        return True
    connection.ensure_connection()
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 50")
    try:
        with transaction.atomic():
            return True
    except OperationalError:
        return False
    finally:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 5000")


def steady(
    tenant_id: UUID, url: str, per_second: float, seconds: float, start_in: float = 0.5
) -> dict[str, float]:
    """Calls that fall due one after the other; when each is due."""
    count = int(per_second * seconds)
    commands = [call(tenant_id, url, start_in + number / per_second) for number in range(count)]
    accepted = accept(commands)
    return {name: c.due_at.timestamp() for name, c in zip(accepted, commands, strict=True) if c.due_at}


def lateness(due: dict[str, float], sent: dict[str, list[Sent]]) -> dict[str, float]:
    """By how many seconds the first request of each call came after its due time."""
    return {name: min(one.time for one in sent[name]) - at for name, at in due.items()}


def node_of(engine: Program) -> UUID | None:
    return Node.objects.filter(process_id=engine.pid).values_list("pk", flat=True).first()


def owns_shards(engine: Program) -> bool:
    node = node_of(engine)
    return node is not None and TimerShard.objects.filter(owner_id=node).exists()


def seat_of(role: str, cluster: Program) -> int | None:
    """The process of the cluster that plays the role now."""
    nodes = Node.objects.filter(role=role, process_id__in=cluster.children())
    return nodes.order_by("-started_at").values_list("process_id", flat=True).first()


def at_work(*engines: Program) -> None:
    """Wait until each of the engines has a share of the shards."""
    for engine in engines:
        until(lambda: owns_shards(engine) or not engine.running, "the engine has a share of the shards")  # noqa: B023
        assert engine.running


__all__ = [
    "Program",
    "Sent",
    "Stage",
    "Witness",
    "accept",
    "at_work",
    "call",
    "chance",
    "free_to_write",
    "lateness",
    "node_of",
    "owns_shards",
    "say",
    "seat_of",
    "stage",
    "steady",
    "unfinished",
    "until",
    "until_all_have_ended",
]

"""The harness of the chaos tests: real processes on the test database, and a target that records what reaches it.

A test judges by the target's record and by the ids that `submit` accepted, never by our database alone. Processes are
killed, frozen and thawed by their pid; the harness kills whatever is left of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
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
from tests.database_clock import read_running_clock
from tests.databases import get_database_name
from timers.models import Node, TimerShard

T = TypeVar("T")

DISPATCHER = """
import django; django.setup()
from eventservice.runtime.wiring import build_dispatcher
role = build_dispatcher()
while True: role.step(0.2)
"""


@pytest.fixture
def harness(transactional_db: None, tmp_path: Path) -> Iterator[ProcessHarness]:
    harness = ProcessHarness(tmp_path)
    try:
        yield harness
    finally:
        harness.close()


@pytest.fixture
def rng() -> random.Random:
    """Return the random numbers of the test. CHAOS_SEED=n repeats those of a failure."""
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(10**6))
    report(f"CHAOS_SEED={seed}")
    return random.Random(seed)


def report(text: str) -> None:
    """Write a line that pytest shows with -s, and beside a failure."""
    sys.stdout.write(text + "\n")


def wait_until(condition: Callable[[], T | None], expected: str, seconds: float = 90.0) -> T:
    """Return the first true value of the condition. The timeout is a safety net, not a promise."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not after {seconds:.0f} s: {expected}"
        time.sleep(0.02)
    return found


def wait_until_none_left(count: Callable[[], int], what: str, seconds: float = 90.0) -> None:
    """Wait until the count is zero. How long that takes depends on the machine: it must only not stand still so long."""
    fewest, deadline = count(), time.monotonic() + seconds
    while fewest:
        assert time.monotonic() < deadline, f"{fewest:,} {what} are left, as {seconds:.0f} s ago"
        time.sleep(0.02 if fewest < 1000 else 0.5)
        if (left := count()) < fewest:
            fewest, deadline = left, time.monotonic() + seconds


# --- processes ------------------------------------------------------------------------------------------------


class Program:
    """A process that the harness has started, in a process group of its own."""

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
    def is_running(self) -> bool:
        return self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._popen.poll()

    @property
    def is_frozen(self) -> bool:
        return _read_state(self.pid) == "T"

    def list_children(self) -> list[int]:
        """Return the living processes of its group, without itself."""
        return [
            pid
            for pid in _list_pids()
            if pid != self.pid and _read_group(pid) == self.pid and _read_state(pid) != "Z"
        ]

    def kill(self) -> None:
        """Send SIGKILL to this process alone."""
        self._popen.kill()
        self._popen.wait()

    def kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()

    def freeze(self) -> None:
        self._popen.send_signal(signal.SIGSTOP)
        wait_until(lambda: self.is_frozen or not self.is_running, "it freezes")

    def thaw(self) -> None:
        self._popen.send_signal(signal.SIGCONT)

    def freeze_group(self) -> None:
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw_group(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        self._popen.terminate()

    def wait(self, seconds: float = 60.0) -> int:
        return self._popen.wait(seconds)


def _read_stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["X", "0", "0"]


def _read_state(pid: int) -> str:
    return _read_stat(pid)[0]


def is_living(pid: int) -> bool:
    return _read_state(pid) not in "ZX"


def list_group(leader: int) -> list[int]:
    """Return the living processes of a process group."""
    return [pid for pid in _list_pids() if _read_group(pid) == leader and is_living(pid)]


def find_children(parent: int) -> list[int]:
    """Return the living processes that this one has forked."""
    return [pid for pid in _list_pids() if int(_read_stat(pid)[1]) == parent and is_living(pid)]


def _read_group(pid: int) -> int:
    return int(_read_stat(pid)[2])


def _list_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def build_database_environment() -> dict[str, str]:
    """Return the environment variables by which another process uses this test's database."""
    database = connection.settings_dict
    if connection.vendor == "sqlite":
        return {"DB_PATH": str(database["NAME"]), "DATABASE_URL": ""}
    user = quote(database["USER"]) + (f":{quote(database['PASSWORD'])}" if database["PASSWORD"] else "")
    address = database["HOST"] + (f":{database['PORT']}" if database["PORT"] else "")
    return {"DATABASE_URL": f"{get_database_name()}://{user}@{address}/{database['NAME']}"}


def find_free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"127.0.0.1:{found.getsockname()[1]}"


def is_serving(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/livez", timeout=5) as response:
        return bool(response.status == 200)
    return False


class ProcessHarness:
    """Starts processes, and kills all that are left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs: list[Program] = []
        self.targets: list[RecordingTarget] = []
        self.env = {
            **os.environ,
            **build_database_environment(),
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

    def start_command(self, name: str, *command: str, **env: str) -> Program:
        return self.start(name, [sys.executable, "manage.py", *command], **env)

    def start_engine(self, faults: str = "", **env: str) -> Program:
        return self.start_command("engine", "poll_timers", FAULTS=faults, **env)

    def start_dispatcher(self, faults: str = "", **env: str) -> Program:
        return self.start("dispatcher", [sys.executable, "-c", DISPATCHER], FAULTS=faults, **env)

    def start_cluster(self, faults: str = "", **env: str) -> Program:
        return self.start_command("cluster", "cluster", FAULTS=faults, **env)

    def start_web(self, address: str, *options: str, **env: str) -> Program:
        """Start gunicorn at an address that `find_free_address` has found, with one worker unless the options say more."""
        config = ["-c", "python:eventservice.runtime.gunicorn_config"]
        command = [sys.executable, "-m", "gunicorn", *config, "--bind", address, *options]
        return self.start("web", [*command, "eventservice.wsgi"], **env)

    def start_target(self, host: str = "127.0.0.1") -> RecordingTarget:
        number = len(self.targets)
        record = self.folder / f"target-{number}.jsonl"
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
        url = wait_until(lambda: re.search(r"listening on (\S+)", program.log), "the target listens")[1]
        self.targets.append(RecordingTarget(url, record))
        return self.targets[-1]

    def stop(self, *programs: Program) -> None:
        """Terminate the programs at the same time, and wait until they have shut down."""
        for program in programs:
            program.terminate()
        for program in programs:
            program.wait()

    def close(self) -> None:
        for program in self.programs:
            program.kill_group()
        # pytest shows it beside a failure.
        for program in self.programs[-8:]:
            lines = [line for line in program.log.splitlines() if line and line[0] not in "{["]
            report("\n".join([f"--- {program.log_path.stem}", *lines[-12:]]))


# --- the target -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request as it reached the target."""

    time: float
    path: str
    call_id: str
    attempt: int
    idempotency_key: str | None


class RecordingTarget:
    """The mock target, a process of its own that records each request in a file."""

    def __init__(self, url: str, record: Path) -> None:
        self.url = url
        self._record = record

    def list_requests(self) -> list[ReceivedRequest]:
        """Return all requests so far, in the order in which they arrived."""
        lines = self._record.read_text().splitlines(keepends=True)
        return [_parse_record(json.loads(line)) for line in lines if line.endswith("\n")]

    def group_by_call(self) -> dict[str, list[ReceivedRequest]]:
        found = defaultdict(list)
        for request in self.list_requests():
            found[request.call_id].append(request)
        return found

    def list_call_ids(self) -> set[str]:
        return {request.call_id for request in self.list_requests()}

    def count_requests(self) -> int:
        return self._record.read_bytes().count(b"\n")

    def get_max_connections(self) -> int:
        """Return how many connections were open at the same time, at most."""
        with urllib.request.urlopen(f"{self.url}/stats") as answer:
            return int(json.load(answer)["most_connections"])


def _parse_record(line: dict[str, Any]) -> ReceivedRequest:
    return ReceivedRequest(
        line["time"],
        line["path"],
        line["service_call_id"] or "",
        int(line["attempt"] or 0),
        line["idempotency_key"],
    )


# --- calls ----------------------------------------------------------------------------------------------------


def build_call(tenant_id: UUID, url: str, due_in: float | None = None, **terms: Any) -> SubmitServiceCall:
    due_at = None if due_in is None else read_running_clock() + timedelta(seconds=due_in)
    return SubmitServiceCall(
        tenant_id, "chaos", RequestSpec("POST", url, {}, {"x": 1}), due_at=due_at, **terms
    )


def submit_calls(commands: Iterable[SubmitServiceCall]) -> list[str]:
    """Submit the calls, and return the ids that were accepted."""
    return [str(submitted.service_call_id) for submitted in submit(list(commands))]


def count_unfinished() -> int:
    return ServiceCall.across_tenants.exclude(status__in=TERMINAL).count()


def wait_until_all_ended() -> None:
    wait_until_none_left(count_unfinished, "unfinished calls")


def can_write() -> bool:
    """Return False if a frozen process holds SQLite's only write lock."""
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


def submit_steadily(
    tenant_id: UUID, url: str, per_second: float, seconds: float, start_in: float = 0.5
) -> dict[str, float]:
    """Submit calls that fall due one after the other. Return when each is due, by its id."""
    count = int(per_second * seconds)
    commands = [build_call(tenant_id, url, start_in + number / per_second) for number in range(count)]
    accepted = submit_calls(commands)
    return {call_id: c.due_at.timestamp() for call_id, c in zip(accepted, commands, strict=True) if c.due_at}


def compute_lateness(due: dict[str, float], received: dict[str, list[ReceivedRequest]]) -> dict[str, float]:
    """Return by how many seconds the first request of each call came after its due time."""
    return {
        call_id: min(request.time for request in received[call_id]) - due_at
        for call_id, due_at in due.items()
    }


def find_node(engine: Program) -> UUID | None:
    return Node.objects.filter(process_id=engine.pid).values_list("pk", flat=True).first()


def has_shards(engine: Program) -> bool:
    node = find_node(engine)
    return node is not None and TimerShard.objects.filter(owner_id=node).exists()


def find_role_process(role: str, cluster: Program) -> int | None:
    """Return the pid of the cluster's worker that plays the role now, or None."""
    nodes = Node.objects.filter(role=role, process_id__in=cluster.list_children())
    return nodes.order_by("-started_at").values_list("process_id", flat=True).first()


def wait_until_at_work(*engines: Program) -> None:
    """Wait until each engine owns shards."""
    for engine in engines:
        wait_until(lambda: has_shards(engine) or not engine.is_running, "the engine owns shards")  # noqa: B023
        assert engine.is_running

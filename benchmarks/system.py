"""The system under test, started as `make run` does, and what surrounds it: a workspace, a remote agent and a mock target.

Everything that is started is a context manager, so it stops with the benchmark, however that ends. Files are written to
one temporary folder, data to databases that are created for the run.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import resource
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from benchmarks.processes import (
    REPOSITORY,
    BenchmarkError,
    find_descendants,
    find_free_port,
    read_command_line,
    start_process,
    wait_until,
)
from benchmarks.report import find_file_system

T = TypeVar("T")

FOLDER_PREFIX = "eventservice-bench-"
START_SECONDS = 300.0  # on a machine that is busy otherwise
# As few as serve all requests that do not wait or export, and always the same number, so that commits can be compared.
WEB_WORKERS = 2
# Variables that would make the system differ from what `make run` starts.
REMOVED_VARIABLES = (
    "DATABASE_URL",
    "DB_PATH",
    "EGRESS_",
    "ENGINE_",
    "API_",
    "DB_",
    "SLICE_",
    "NODE_",
    "LOG_",
    "FAULTS",
    "TIMER_STORES",
)


# --- the workspace --------------------------------------------------------------------------------------------


class Workspace:
    """A temporary folder, and databases in it or on a server."""

    def __init__(self, folder: Path, server: str | None) -> None:
        self.folder = folder
        self.server = server
        self.shared = (
            False  # one system and one database for all benchmarks: a quick test that the programs work
        )
        self.running: System | None = None
        self.stack = contextlib.ExitStack()
        self._database: dict[str, str] | None = None
        self._count = 0

    @classmethod
    @contextlib.contextmanager
    def open(cls, parent: Path | None, server: str | None) -> Iterator[Workspace]:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent)).resolve()
        workspace = cls(folder, server)
        try:
            with workspace.stack:
                yield workspace
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def create_name(self, kind: str) -> str:
        """Return a name that is unique in this workspace."""
        self._count += 1
        return f"{kind}-{self._count}"

    def create_database(self) -> dict[str, str]:
        """Return the environment variables of a new, empty database, which is deleted with the workspace."""
        if self._database is None or not self.shared:
            self._database = self.create_own_database()
        return self._database

    def create_own_database(self) -> dict[str, str]:
        """Return the environment variables of a new database that no other benchmark shares."""
        if self.server is None:
            return {
                "DB_PATH": str(self.folder / f"{self.create_name('database')}.sqlite3"),
                "DATABASE_URL": "",
            }
        return {"DATABASE_URL": self.stack.enter_context(create_server_database(self.server))}

    def delete_database(self, database: Mapping[str, str]) -> None:
        """Free the disk space of a SQLite database. A database on a server is dropped with the workspace."""
        path = database.get("DB_PATH")
        if path and not self.shared:
            for part in Path(path).parent.glob(Path(path).name + "*"):
                part.unlink()


def build_environment(database: Mapping[str, str] | None = None, **more: str) -> dict[str, str]:
    """Return the environment variables for a process of the system, on that database."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(REMOVED_VARIABLES)}
    return {
        **kept,
        "DJANGO_SETTINGS_MODULE": "eventservice.settings",
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONUNBUFFERED": "1",
        "ENV_FILE": os.devnull,
        **(database or {}),
        **more,
    }


def describe_environment(workspace: Workspace) -> dict[str, Any]:
    """Return the database, its version, the file system and the limit of open files."""
    with start_agent(workspace, build_environment(workspace.create_database())) as agent:
        database = agent("describe_database")
    return {
        "database": database["database"],
        "database_version": database["version"],
        "file_system": find_file_system(workspace.folder),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
    }


@contextlib.contextmanager
def create_server_database(server: str) -> Iterator[str]:
    """Create a database with a random name on the server, and drop it on exit."""
    name = f"eventservice_bench_{secrets.token_hex(4)}"
    parts = urlsplit(server)
    if parts.scheme.startswith("postgres"):
        execute, create, drop = _execute_on_postgresql, "", " WITH (FORCE)"
    else:
        execute, create, drop = _execute_on_mariadb, " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", ""
    execute(server, f"CREATE DATABASE {name}{create}")
    try:
        yield parts._replace(path=f"/{name}").geturl()
    finally:
        execute(server, f"DROP DATABASE {name}{drop}")


def _execute_on_postgresql(server: str, statement: str) -> None:
    import psycopg

    with psycopg.connect(server.replace("postgres://", "postgresql://"), autocommit=True) as connection:
        connection.execute(statement.encode())


def _execute_on_mariadb(server: str, statement: str) -> None:
    import pymysql

    parts = urlsplit(server)
    connection = pymysql.connect(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 3306,
        user=parts.username,
        password=parts.password or "",
    )
    with connection, connection.cursor() as cursor:
        cursor.execute(statement)


# --- the remote agent -----------------------------------------------------------------------------------------


class AgentClient:
    """The client of a remote agent (benchmarks/remote_agent.py): `agent("submit_calls", …)` runs that operation."""

    ANSWER_SECONDS = 1800.0

    def __init__(self, popen: subprocess.Popen[bytes], log: Path) -> None:
        self._popen = popen
        self._log = log
        self._read()

    def __call__(self, operation: str, **arguments: Any) -> Any:
        assert self._popen.stdin
        request = {"operation": operation, "arguments": arguments}
        self._popen.stdin.write(json.dumps(request).encode() + b"\n")
        self._popen.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise BenchmarkError(f"{operation}: {answer['error']}")
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        assert self._popen.stdout
        readable, _, _ = select.select([self._popen.stdout], [], [], self.ANSWER_SECONDS)
        line = self._popen.stdout.readline() if readable else b""
        if not line:
            raise BenchmarkError(
                f"the remote agent has stopped: {self._log.read_text(errors='replace')[-800:]}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def start_agent(workspace: Workspace, env: Mapping[str, str]) -> Iterator[AgentClient]:
    """Start a remote agent with these environment variables (build_environment)."""
    log = workspace.folder / "agent.log"
    argv = [sys.executable, "-m", "benchmarks.remote_agent"]
    with (
        log.open("ab") as file,
        start_process(argv, env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file) as popen,
    ):
        yield AgentClient(popen, log)


# --- the mock target ------------------------------------------------------------------------------------------


class ReceivedRequest(NamedTuple):
    """A request as it reached the mock target."""

    time: float
    path: str
    call: str


class Addressed(Protocol):
    """Something that the system may call."""

    @property
    def address(self) -> str: ...


class Target:
    """A mock target that records each request and its time."""

    def __init__(self, host: str, port: int, record: Path) -> None:
        self.host, self.port = host, port
        self._record = record.open("rb")

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def build_url(self, path: str) -> str:
        return f"http://{self.address}{path}"

    def count_new(self) -> int:
        """Return the number of requests since the last `read_new`."""
        position = self._record.tell()
        lines = self._record.read().count(b"\n")
        self._record.seek(position)
        return lines

    def read_new(self) -> list[ReceivedRequest]:
        """Return the requests since the last call."""
        position, requests = self._record.tell(), []
        for line in self._record.read().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            position += len(line)
            entry = json.loads(line)
            requests.append(ReceivedRequest(entry["time"], entry["path"], entry["service_call_id"] or ""))
        self._record.seek(position)
        return requests

    def collect(self, path: str, count: int, seconds: float) -> list[ReceivedRequest]:
        """Return the requests for this path once there are enough of them. Requests for other paths are dropped."""
        requests: list[ReceivedRequest] = []

        def is_complete() -> bool:
            if self.count_new() >= count - len(requests):
                requests.extend(request for request in self.read_new() if request.path == path)
            return len(requests) >= count

        try:
            wait_until(is_complete, f"the target has received {count} requests of {path}", seconds, 0.02)
        except BenchmarkError as error:
            raise BenchmarkError(f"{error}: there were {len(requests) + self.count_new()}") from None
        return requests

    def close(self) -> None:
        self._record.close()


@contextlib.contextmanager
def start_target(workspace: Workspace, host: str = "127.0.0.1") -> Iterator[Target]:
    """Start a mock target on a free port."""
    record = workspace.folder / f"{workspace.create_name('witness')}.jsonl"
    log = record.with_suffix(".log")
    argv = [
        sys.executable, "-m", "eventservice.devtools.mock_target", "--host", host, "--record", str(record),
    ]  # fmt: skip
    with log.open("wb") as file, start_process(argv, build_environment(), stdout=file, stderr=file):
        ports = wait_until(
            lambda: re.findall(r":(\d+)\s*$", log.read_text()), "the target listens", START_SECONDS
        )
        target = Target(host, int(ports[0]), record)
        try:
            yield target
        finally:
            target.close()


# --- the system -----------------------------------------------------------------------------------------------


class System:
    """Web, engine and dispatcher, started with `manage.py up`, and a remote agent beside them."""

    def __init__(self, up_pid: int, port: int, agent: AgentClient) -> None:
        self.port = port
        self.agent = agent
        commands = {pid: read_command_line(pid) for pid in find_descendants(up_pid)}
        self._cluster_pid = next(
            pid for pid, command in commands.items() if command.rstrip().endswith("manage.py cluster")
        )
        self._web_pid = next(pid for pid, command in commands.items() if "gunicorn" in command)
        self._roles = {pid: role for role, pid in agent("list_role_pids").items()}

    def list_cluster_pids(self) -> list[int]:
        """Return the pids of the engine, the dispatcher and the processes of django-q2 around them."""
        return [self._cluster_pid, *find_descendants(self._cluster_pid)]

    def list_web_pids(self) -> list[int]:
        return [self._web_pid, *find_descendants(self._web_pid)]

    def sum_by_role(self, figures: Mapping[int, float]) -> dict[str, float]:
        """Return the sums of figures by pid for each role."""
        web_pids = set(self.list_web_pids())
        sums = {"engine": 0.0, "dispatcher": 0.0, "rest of the cluster": 0.0, "web": 0.0}
        for pid, figure in figures.items():
            sums[self._roles.get(pid, "web" if pid in web_pids else "rest of the cluster")] += figure
        return sums

    def wait_until_published(self, seconds: float = 120.0) -> None:
        wait_until(lambda: not self.agent("has_unpublished"), "all events are published", seconds, 0.2)


@contextlib.contextmanager
def start_system(
    workspace: Workspace, database: Mapping[str, str], targets: Sequence[Addressed] = ()
) -> Iterator[System]:
    """Start the system on the database, with these targets allowed. A shared workspace starts only one."""
    if workspace.shared:
        workspace.running = workspace.running or workspace.stack.enter_context(
            _start_system(workspace, database, "127.0.0.0/8:*")
        )
        yield workspace.running
        return
    with start_own_system(workspace, database, targets) as system:
        yield system


@contextlib.contextmanager
def start_own_system(
    workspace: Workspace, database: Mapping[str, str], targets: Sequence[Addressed], **more: str
) -> Iterator[System]:
    """Start a system that no other benchmark shares, with more environment variables."""
    with _start_system(workspace, database, ",".join(target.address for target in targets), **more) as system:
        yield system


@contextlib.contextmanager
def _start_system(
    workspace: Workspace, database: Mapping[str, str], allow: str, **more: str
) -> Iterator[System]:
    # The system writes a profile there.
    env = build_environment(database, EGRESS_ALLOW=allow, XDG_CONFIG_HOME=str(workspace.folder), **more)
    port, demo_port = find_free_port(), find_free_port()
    argv = [sys.executable, "manage.py", "up", "--port", str(port), "--target-port", str(demo_port)]
    argv += ["--web-workers", str(WEB_WORKERS)]
    log = workspace.folder / "up.log"
    with (
        log.open("wb") as file,
        start_process(argv, env, stdin=subprocess.DEVNULL, stdout=file, stderr=file) as up,
    ):
        try:
            wait_until(
                lambda: is_answering(port, "/api/v1/", up), "the system answers over HTTP", START_SECONDS
            )
            with start_agent(workspace, env) as agent:
                wait_until(lambda: agent("is_ready"), "engine and dispatcher are running", START_SECONDS)
                yield System(up.pid, port, agent)
        except BenchmarkError as error:
            raise BenchmarkError(f"{error}\n{_read_last_lines(log)}") from None


def _read_last_lines(log: Path) -> str:
    """Return the end of the system's log, without the events that it published there."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if '"specversion"' not in line]
    return "\n".join(lines[-20:])


def is_answering(port: int, path: str, server: subprocess.Popen[bytes]) -> bool:
    """Return whether the server answers, with any status below 500. Raise BenchmarkError if it has stopped."""
    if server.poll() is not None:
        raise BenchmarkError(f"the server stopped with exit status {server.returncode}")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status < 500
    except OSError:
        return False
    finally:
        connection.close()


def rotate(items: Sequence[T], round_number: int) -> list[T]:
    """Return the items in the order of this round: each round starts with another one, so that no item is always first."""
    shift = round_number % len(items)
    return [*items[shift:], *items[:shift]]

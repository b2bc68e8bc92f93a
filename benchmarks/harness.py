"""The system under test as `make run` starts it, its target, and the command lines of the programs.

Everything that is started is a context manager, so it ends with the program, however that ends. What is written
goes into one temporary folder, or into a database made for the run.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import http.client
import json
import os
import re
import resource
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from benchmarks import processes
from benchmarks.figures import Report, console, file_system, say

T = TypeVar("T")

REPOSITORY = Path(__file__).resolve().parents[1]
SERVICES = REPOSITORY / "tools" / "services" / "services"
FOLDER_PREFIX = "eventservice-bench-"
START_SECONDS = 60.0
STOP_SECONDS = 45.0
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)


class BenchmarkError(Exception):
    """What a person has to know of a run that could not be made."""


def until(condition: Callable[[], T], what: str, seconds: float, every: float = 0.05) -> T:
    """The condition's first truth."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise BenchmarkError(f"waited {seconds:.0f} s in vain until {what}")
        time.sleep(every)
    return found


# --- the command line -----------------------------------------------------------------------------------------


def parser(name: str, description: str | None, rounds: int) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    made.add_argument(
        "--rounds", type=positive, default=rounds, help="of each thing, taking turns (%(default)s)"
    )
    made.add_argument(
        "--database",
        type=server_url,
        metavar="URL",
        help="create the database on this PostgreSQL or MariaDB server; `postgres` and `mariadb` stand for those "
        "that `make services` starts",
    )
    made.add_argument(
        "--folder", type=Path, help="where the temporary folder is made (the system's own place)"
    )
    made.add_argument("--save", action="store_true", help="keep the JSON line in benchmarks/results/")
    return made


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def server_url(text: str) -> str:
    """Return the URL of a server that is named by its URL or by its name in `make services`."""
    try:
        return text if "://" in text else service_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def service_url(name: str) -> str:
    """Return the URL of a server that `make services` starts. Raise ValueError for an unknown name."""
    result = subprocess.run([SERVICES, "url", name], capture_output=True, text=True)
    if result.returncode:
        raise ValueError(result.stderr.strip())
    return result.stdout.strip()


Measure = Callable[["Stage", argparse.Namespace, Report], None]


def run_program(made: argparse.ArgumentParser, name: str, measure: Measure) -> None:
    """Parse, measure, publish; clean up whatever happens."""
    options = made.parse_args()
    with ended_well(name), Stage.open(options.folder, options.database) as stage:
        report = report_of(name, measure, stage, options)
    report.publish(save=options.save)


def report_of(name: str, measure: Measure, stage: Stage, options: argparse.Namespace) -> Report:
    shown = {key: value for key, value in vars(options).items() if key not in ("database", "folder", "save")}
    report = Report(name, shown)
    report.on |= stage.facts()
    measure(stage, options, report)
    return report


@contextlib.contextmanager
def ended_well(name: str) -> Iterator[None]:
    """Or else the program ends with a word on why."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted; all that was started has been stopped")
        sys.exit(130)
    except BenchmarkError as error:
        console.print(f"{name} could not be measured: {error}", style="red", markup=False, highlight=False)
        sys.exit(1)


def _interrupt(number: int, frame: object) -> None:
    """Once: what follows is cleaning up, which is not interrupted. Each part of it is bounded in time."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


# --- processes ------------------------------------------------------------------------------------------------


def _end_with(parent: int) -> None:
    """In the child, before exec: SIGTERM when the program dies without a chance to clean up."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


@contextlib.contextmanager
def process(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path = REPOSITORY, **pipes: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """In a session of its own, so that Ctrl-C reaches the program alone; nothing of it is left afterwards."""
    parent = os.getpid()
    popen = subprocess.Popen(
        argv,
        cwd=cwd,
        env=dict(env),
        start_new_session=True,
        preexec_fn=lambda: _end_with(parent),
        **pipes,
    )
    try:
        yield popen
    finally:
        end(popen)


def end(popen: subprocess.Popen[bytes]) -> None:
    family = {pid: one for pid in processes.descendants(popen.pid) if (one := processes.stat(pid))}
    popen.terminate()
    try:
        popen.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.wait()
    for pid, one in family.items():
        now = processes.stat(pid)
        if now is not None and now.started == one.started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


# --- the stage ------------------------------------------------------------------------------------------------


class Stage:
    """A temporary folder, and databases in it or on the server that was named."""

    def __init__(self, folder: Path, server: str | None) -> None:
        self.folder = folder
        self.server = server
        self.shared = False  # one system for all that ask for one, to see quickly that the programs work
        self.running: System | None = None
        self.stack = contextlib.ExitStack()
        self._database: dict[str, str] | None = None
        self._count = 0

    @classmethod
    @contextlib.contextmanager
    def open(cls, parent: Path | None, server: str | None) -> Iterator[Stage]:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent)).resolve()
        stage = cls(folder, server)
        try:
            with stage.stack:
                yield stage
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}"

    def database(self) -> dict[str, str]:
        """The environment that names a new, empty database. It lasts as long as the stage."""
        if self._database is None or not self.shared:
            self._database = self._new_database()
        return self._database

    def _new_database(self) -> dict[str, str]:
        if self.server is None:
            return {"DB_PATH": str(self.folder / f"{self.name('database')}.sqlite3"), "DATABASE_URL": ""}
        return {"DATABASE_URL": self.stack.enter_context(_server_database(self.server))}

    def env(self, database: Mapping[str, str], **more: str) -> dict[str, str]:
        return {**environment(), **database, **more}

    def facts(self) -> dict[str, Any]:
        with agent(self.env(self.database()), self.folder) as asked:
            known = asked("facts")
        return {
            "database": known["database"],
            "database_version": known["version"],
            "file_system": file_system(self.folder),
            "open_files": _open_files(),
        }

    def forget(self, database: Mapping[str, str]) -> None:
        """A database that is not needed again gives its room back."""
        path = database.get("DB_PATH")
        if path and not self.shared:
            for part in Path(path).parent.glob(Path(path).name + "*"):
                part.unlink()


def environment() -> dict[str, str]:
    """This one's, without what would make the system another than `make run` starts."""
    ours = (
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
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {
        **kept,
        "DJANGO_SETTINGS_MODULE": "eventservice.settings",
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONUNBUFFERED": "1",
    }


def _open_files() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@contextlib.contextmanager
def _server_database(server: str) -> Iterator[str]:
    """A database of its own on that server: its name is made up, and it is dropped at the end."""
    name = f"eventservice_bench_{secrets.token_hex(4)}"
    parts = urlsplit(server)
    execute = _postgres if parts.scheme.startswith("postgres") else _mariadb
    execute(server, f"CREATE DATABASE {name}")
    try:
        yield parts._replace(path=f"/{name}").geturl()
    finally:
        execute(server, f"DROP DATABASE {name}" + (" WITH (FORCE)" if execute is _postgres else ""))


def _postgres(server: str, statement: str) -> None:
    import psycopg

    with psycopg.connect(server.replace("postgres://", "postgresql://"), autocommit=True) as connection:
        connection.execute(statement.encode())


def _mariadb(server: str, statement: str) -> None:
    import pymysql

    at = urlsplit(server)
    connection = pymysql.connect(
        host=at.hostname or "127.0.0.1", port=at.port or 3306, user=at.username, password=at.password or ""
    )
    with connection, connection.cursor() as cursor:
        cursor.execute(
            statement + (" CHARACTER SET utf8mb4 COLLATE utf8mb4_bin" if "CREATE" in statement else "")
        )


# --- the agent ------------------------------------------------------------------------------------------------


class Agent:
    """A process inside the system (benchmarks.inside) that does what it is asked: `agent("submit_calls", …)`."""

    PATIENCE = 1800.0

    def __init__(self, popen: subprocess.Popen[bytes], log: Path) -> None:
        self._popen = popen
        self._log = log
        self._read()

    def __call__(self, do: str, **arguments: Any) -> Any:
        assert self._popen.stdin
        self._popen.stdin.write(json.dumps({"do": do, "with": arguments}).encode() + b"\n")
        self._popen.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise BenchmarkError(f"{do}: {answer['error']}")
        return answer["done"]

    def _read(self) -> dict[str, Any]:
        assert self._popen.stdout
        readable, _, _ = select.select([self._popen.stdout], [], [], self.PATIENCE)
        line = self._popen.stdout.readline() if readable else b""
        if not line:
            raise BenchmarkError(f"the agent is gone: {self._log.read_text(errors='replace')[-800:]}")
        found: dict[str, Any] = json.loads(line)
        return found


@contextlib.contextmanager
def agent(env: Mapping[str, str], folder: Path) -> Iterator[Agent]:
    log = folder / "agent.log"
    argv = [sys.executable, "-m", "benchmarks.inside"]
    with (
        log.open("ab") as file,
        process(argv, env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file) as popen,
    ):
        yield Agent(popen, log)


# --- the target and its record --------------------------------------------------------------------------------


class Sent(NamedTuple):
    """A request as it reached the target."""

    time: float
    path: str
    call: str


class Target:
    """A mock target that writes down what reaches it, and when."""

    def __init__(self, host: str, port: int, record: Path) -> None:
        self.host, self.port = host, port
        self._record = record.open("rb")

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def url(self, path: str) -> str:
        return f"http://{self.address}{path}"

    def count(self) -> int:
        """Lines since the last `take`."""
        at = self._record.tell()
        lines = self._record.read().count(b"\n")
        self._record.seek(at)
        return lines

    def take(self) -> list[Sent]:
        """All since the last time."""
        at, found = self._record.tell(), []
        for line in self._record.read().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            at += len(line)
            entry = json.loads(line)
            found.append(Sent(entry["time"], entry["path"], entry["service_call_id"] or ""))
        self._record.seek(at)
        return found

    def collect(self, path: str, count: int, seconds: float) -> list[Sent]:
        """What came for this path, once it is so many; what came for others meanwhile is dropped."""
        found: list[Sent] = []

        def complete() -> bool:
            if self.count() >= count - len(found):
                found.extend(sent for sent in self.take() if sent.path == path)
            return len(found) >= count

        try:
            until(complete, f"the target has received {count} requests of {path}", seconds, 0.02)
        except BenchmarkError as error:
            raise BenchmarkError(f"{error}: there were {len(found) + self.count()}") from None
        return found

    def close(self) -> None:
        self._record.close()


@contextlib.contextmanager
def target(stage: Stage, host: str = "127.0.0.1") -> Iterator[Target]:
    record = stage.folder / f"{stage.name('witness')}.jsonl"
    log = record.with_suffix(".log")
    argv = [
        sys.executable,
        "-m",
        "eventservice.devtools.mock_target",
        "--host",
        host,
        "--record",
        str(record),
    ]
    with log.open("wb") as file, process(argv, environment(), stdout=file, stderr=file):
        said = until(lambda: re.findall(r":(\d+)\s*$", log.read_text()), "the target listens", START_SECONDS)
        made = Target(host, int(said[0]), record)
        try:
            yield made
        finally:
            made.close()


# --- the system -----------------------------------------------------------------------------------------------


class System:
    """Web, engine, dispatcher: `manage.py up`, with an agent beside it."""

    def __init__(self, up: int, port: int, asked: Agent) -> None:
        self.up = up
        self.port = port
        self.agent = asked
        leaders = {pid: processes.command(pid) for pid in processes.descendants(up)}
        self._cluster = next(
            pid for pid, said in leaders.items() if said.rstrip().endswith("manage.py cluster")
        )
        self._web = next(pid for pid, said in leaders.items() if "gunicorn" in said)
        self._roles = {pid: role for role, pid in asked("pids").items()}

    def cluster(self) -> list[int]:
        """Engine, dispatcher, and what of django-q2 keeps them going."""
        return [self._cluster, *processes.descendants(self._cluster)]

    def web(self) -> list[int]:
        return [self._web, *processes.descendants(self._web)]

    def by_role(self, figures: Mapping[int, float]) -> dict[str, float]:
        """From figures by pid."""
        web = set(self.web())
        found = {"engine": 0.0, "dispatcher": 0.0, "rest of the cluster": 0.0, "web": 0.0}
        for pid, figure in figures.items():
            found[self._roles.get(pid, "web" if pid in web else "rest of the cluster")] += figure
        return found

    def until_quiet(self, seconds: float = 120.0) -> None:
        """Every event has been published."""
        until(lambda: not self.agent("unpublished"), "all events are published", seconds, 0.2)


@contextlib.contextmanager
def system(stage: Stage, database: Mapping[str, str], targets: Sequence[Target] = ()) -> Iterator[System]:
    if stage.shared:
        stage.running = stage.running or stage.stack.enter_context(_start(stage, database, "127.0.0.0/8:*"))
        yield stage.running
        return
    with _start(stage, database, ",".join(one.address for one in targets)) as started:
        yield started


@contextlib.contextmanager
def _start(stage: Stage, database: Mapping[str, str], allow: str) -> Iterator[System]:
    env = stage.env(database, EGRESS_ALLOW=allow)
    port, demo_port = free_port(), free_port()
    argv = [sys.executable, "manage.py", "up", "--port", str(port), "--target-port", str(demo_port)]
    log = stage.folder / "up.log"
    with (
        log.open("wb") as file,
        process(argv, env, stdin=subprocess.DEVNULL, stdout=file, stderr=file) as up,
    ):
        try:
            until(lambda: answers(port, "/api/v1/", up), "the system answers over HTTP", START_SECONDS)
            with agent(env, stage.folder) as asked:
                until(lambda: asked("ready"), "engine and dispatcher are at work", START_SECONDS)
                yield System(up.pid, port, asked)
        except BenchmarkError as error:
            raise BenchmarkError(f"{error}\n{_last_words(log)}") from None


def _last_words(log: Path) -> str:
    """Of what it logged, without the events that it published there."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if '"specversion"' not in line]
    return "\n".join(lines[-20:])


def answers(port: int, path: str, server: subprocess.Popen[bytes]) -> bool:
    """Anything but a trouble of its own."""
    if server.poll() is not None:
        raise BenchmarkError(f"the server ended with {server.returncode}")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status < 500
    except OSError:
        return False
    finally:
        connection.close()


def turns(things: Sequence[T], round_number: int) -> list[T]:
    """All of them, begun with another one in each round: what comes first or last is not always the same."""
    shift = round_number % len(things)
    return [*things[shift:], *things[:shift]]

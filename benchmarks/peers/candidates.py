"""What is compared: how each candidate is set up, what it stores, and how a run of it is started and driven."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from benchmarks.huey_peer import ask_redis
from benchmarks.peers.environments import NODE_SOURCES, install_node, install_python, read_python_versions
from benchmarks.peers.receiver import Receiver
from benchmarks.peers.stores import PostgresqlStore, RedisStore, SqliteStore, Store
from benchmarks.processes import REPOSITORY, BenchmarkError, find_descendants, start_process
from benchmarks.system import System, Workspace, create_server_database, start_system

SUBMIT_SECONDS = 1800


class StoreKind(StrEnum):
    SQLITE = "SQLite"
    POSTGRESQL = "PostgreSQL"
    REDIS = "Redis"


@dataclass(frozen=True)
class Record:
    """What a candidate keeps and promises, beyond calling the URL."""

    outcome: str
    attempt_log: str
    events: str
    acknowledgement: str


@dataclass(frozen=True)
class Servers:
    """The servers that the candidates use. The Redis URL names a database that may be flushed."""

    postgresql: str
    redis: str


@dataclass(frozen=True)
class Arena:
    """What all runs share."""

    workspace: Workspace
    servers: Servers
    receiver: Receiver


class Running(Protocol):
    """A started candidate."""

    store: Store

    def submit(self, label: str, first: int, count: int, due: float) -> float:
        """Submit jobs that are due at one moment, and return the seconds that it took."""

    def submit_steadily(self, label: str, count: int, rate: float, ahead_ms: int) -> float:
        """Submit one job after the other, and return by how many milliseconds submission fell behind."""

    def settle(self) -> None:
        """Return when what the submissions caused has been done."""

    def list_pids(self) -> list[int]: ...


@dataclass(frozen=True)
class Candidate:
    """A job queue with its settings. `submitted_per_second` is a low first estimate, by which due times are chosen."""

    name: str
    store: StoreKind
    settings: str
    record: Record
    submitted_per_second: int
    far_future: str | None = None  # why its documentation advises against many jobs in the far future

    @contextlib.contextmanager
    def start(self, arena: Arena) -> Iterator[Running]:
        """Start the candidate with an empty store. Stop it, and remove what it stored, on exit."""
        raise NotImplementedError

    def install(self) -> None:
        """Install what the candidate needs."""

    def read_version(self) -> str:
        raise NotImplementedError


# --- Event Service --------------------------------------------------------------------------------------------


class RunningSystem:
    """Event Service, driven over its REST API by a process of its own."""

    def __init__(self, arena: Arena, store: Store, system: System) -> None:
        self.store = store
        self._system = system
        self._receiver = arena.receiver
        tenant = system.agent("ensure_tenant", name="peers", limits=False)
        url = f"http://127.0.0.1:{system.port}/api/v1/tenants/{tenant['id']}/service-calls"
        env = {**_build_environment(url), "PEER_KEY": tenant["key"]}
        self._driver = Driver(_build_python_argv(Path(sys.executable), "rest_driver"), env)

    def submit(self, label: str, first: int, count: int, due: float) -> float:
        return self._driver.submit(self._receiver.build_url(label), first, count, due)

    def submit_steadily(self, label: str, count: int, rate: float, ahead_ms: int) -> float:
        return self._driver.submit_steadily(self._receiver.build_url(label), count, rate, ahead_ms)

    def settle(self) -> None:
        self._system.wait_until_published(1800.0)

    def list_pids(self) -> list[int]:
        return [*self._system.list_cluster_pids(), *self._system.list_web_pids()]


@dataclass(frozen=True)
class EventService(Candidate):
    """This system, as `make run` starts it, with its web tier."""

    @contextlib.contextmanager
    def start(self, arena: Arena) -> Iterator[Running]:
        server = arena.servers.postgresql if self.store is StoreKind.POSTGRESQL else None
        with contextlib.ExitStack() as stack:
            if server is None:
                path = arena.workspace.folder / f"{arena.workspace.create_name('database')}.sqlite3"
                stack.callback(_delete_sqlite, path)
                database = {"DB_PATH": str(path), "DATABASE_URL": ""}
                store: Store = SqliteStore()
            else:
                url = stack.enter_context(create_server_database(server))
                database = {"DATABASE_URL": url}
                store = PostgresqlStore(url)
            system = stack.enter_context(start_system(arena.workspace, database, [arena.receiver]))
            yield RunningSystem(arena, store, system)

    def read_version(self) -> str:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty=*"], cwd=REPOSITORY, capture_output=True, text=True
        )
        return result.stdout.strip() or "unknown"


def _delete_sqlite(path: Path) -> None:
    for part in path.parent.glob(path.name + "*"):
        part.unlink()


# --- peers ----------------------------------------------------------------------------------------------------


class Driver:
    """A candidate's driver program (benchmarks/peers/python/driver.py and node/driver.mjs)."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.argv = list(argv)
        self._env = dict(env)

    def run(self, command: str, **options: Any) -> dict[str, Any]:
        """Run a command and return its answer. Raise BenchmarkError if it fails."""
        argv = [*self.argv, command, json.dumps(options)]
        result = subprocess.run(
            argv, env=self._env, cwd=REPOSITORY, capture_output=True, text=True, timeout=SUBMIT_SECONDS
        )
        lines = result.stdout.strip().splitlines()
        if result.returncode or not lines:
            raise BenchmarkError(f"{command} failed: {(result.stderr or result.stdout)[-1500:]}")
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer

    def submit(self, url: str, first: int, count: int, due: float) -> float:
        answer = self.run("submit", url=url, first=first, count=count, due=round(due * 1000))
        return float(answer["seconds"])

    def submit_steadily(self, url: str, count: int, rate: float, ahead_ms: int) -> float:
        return float(
            self.run("submit_steadily", url=url, count=count, rate=rate, ahead=ahead_ms)["behind_ms"]
        )


class RunningPeer:
    """A peer's worker processes and its driver."""

    def __init__(
        self, arena: Arena, store: Store, driver: Driver, workers: Sequence[subprocess.Popen[bytes]]
    ) -> None:
        self.store = store
        self._driver = driver
        self._workers = workers
        self._receiver = arena.receiver

    def submit(self, label: str, first: int, count: int, due: float) -> float:
        return self._driver.submit(self._receiver.build_url(label), first, count, due)

    def submit_steadily(self, label: str, count: int, rate: float, ahead_ms: int) -> float:
        return self._driver.submit_steadily(self._receiver.build_url(label), count, rate, ahead_ms)

    def settle(self) -> None:
        self._driver.run("settle")

    def list_pids(self) -> list[int]:
        """Return the pids of the workers. Raise BenchmarkError if one has stopped."""
        for worker in self._workers:
            if worker.poll() is not None:
                raise BenchmarkError(f"a worker stopped with exit status {worker.returncode}")
        return [pid for worker in self._workers for pid in (worker.pid, *find_descendants(worker.pid))]


@dataclass(frozen=True)
class Peer(Candidate):
    """A job queue that a driver program runs and submits to. `processes` workers are started: one per core if 0."""

    processes: int = 0

    def build_driver_argv(self) -> list[str]:
        raise NotImplementedError

    def build_worker_argv(self, number: int) -> list[str]:
        raise NotImplementedError

    @contextlib.contextmanager
    def start(self, arena: Arena) -> Iterator[Running]:
        with contextlib.ExitStack() as stack:
            if self.store is StoreKind.POSTGRESQL:
                url = stack.enter_context(create_server_database(arena.servers.postgresql))
                url = url.replace("postgres://", "postgresql://")
                store: Store = PostgresqlStore(url)
            else:
                url = arena.servers.redis
                store = RedisStore(url)
                stack.callback(flush_redis, url)
                flush_redis(url)
            env = _build_environment(url)
            driver = Driver(self.build_driver_argv(), env)
            driver.run("prepare")
            log = arena.workspace.folder / f"{arena.workspace.create_name(self.name)}.log"
            file = stack.enter_context(log.open("wb"))
            count = self.processes or len(os.sched_getaffinity(0))
            workers = [
                stack.enter_context(
                    start_process(self.build_worker_argv(number), env, stdout=file, stderr=file)
                )
                for number in range(count)
            ]
            try:
                yield RunningPeer(arena, store, driver, workers)
            except BenchmarkError as error:
                raise BenchmarkError(f"{error}\n{log.read_text(errors='replace')[-1500:]}") from None


@dataclass(frozen=True)
class NodePeer(Peer):
    program: str = ""
    package: str = ""

    def install(self) -> None:
        install_node()

    def build_driver_argv(self) -> list[str]:
        return ["node", str(install_node() / f"{self.program}.mjs")]

    def build_worker_argv(self, number: int) -> list[str]:
        return [*self.build_driver_argv(), "work"]

    def read_version(self) -> str:
        lock = json.loads((NODE_SOURCES / "package-lock.json").read_text())
        return str(lock["packages"][f"node_modules/{self.package}"]["version"])


@dataclass(frozen=True)
class PythonPeer(Peer):
    """A peer in Python. In the arguments of its worker, `{number}` is the number of the worker."""

    module: str = ""
    package: str = ""
    worker: Sequence[str] = field(default=())

    def install(self) -> None:
        install_python(self.package)

    def build_driver_argv(self) -> list[str]:
        return _build_python_argv(install_python(self.package), self.module)

    def build_worker_argv(self, number: int) -> list[str]:
        return [str(install_python(self.package)), *(part.format(number=number) for part in self.worker)]

    def read_version(self) -> str:
        return read_python_versions(self.package)[self.package]


def _build_python_argv(python: Path, module: str) -> list[str]:
    return [str(python), "-c", f"from benchmarks.peers.python import {module}; {module}.main()"]


def _build_environment(store: str) -> dict[str, str]:
    """Return the small environment of drivers and workers."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1", "PEER_STORE": store}


def flush_redis(url: str) -> None:
    server = urlsplit(url)
    if ask_redis(server, f"SELECT {server.path.removeprefix('/')}", "FLUSHDB") != "+OK":
        raise BenchmarkError(f"Redis at {url} cannot be flushed")


# --- the list -------------------------------------------------------------------------------------------------

FULL_RECORD = Record(
    outcome="kept, with status, headers and the start of the body",
    attempt_log="an entry before and after each attempt",
    events="stored in the same transaction, ordered, published to webhooks",
    acknowledgement="after a commit to disk",
)
REDIS_ACKNOWLEDGEMENT = "before Redis has written to disk (`appendfsync everysec`)"

CANDIDATES: tuple[Candidate, ...] = (
    EventService(
        name="Event Service, SQLite",
        store=StoreKind.SQLITE,
        settings="as `make run` starts it: cluster, and two web workers; REST, 1,000 calls per request",
        record=FULL_RECORD,
        submitted_per_second=1_500,
    ),
    EventService(
        name="Event Service, PostgreSQL",
        store=StoreKind.POSTGRESQL,
        settings="as `make run` starts it: cluster, and two web workers; REST, 1,000 calls per request",
        record=FULL_RECORD,
        submitted_per_second=1_000,
    ),
    NodePeer(
        name="pg-boss",
        store=StoreKind.POSTGRESQL,
        settings="a process per core with 2 loops, batches of 250, polling every 0.5 s (the minimum), `notifyWorker` while"
        " batches are full; `insert` of 1,000",
        record=Record(
            outcome="kept for some days; of a batch without the response",
            attempt_log="no: a counter of retries and the last output",
            events="no",
            acknowledgement="after a commit to disk",
        ),
        submitted_per_second=5_000,
        program="pg_boss",
        package="pg-boss",
    ),
    NodePeer(
        name="graphile-worker",
        store=StoreKind.POSTGRESQL,
        settings="a process per core, 24 jobs at once, local queue of 500, completions in batches, polling every 0.2 s;"
        " `addJobs` of 1,000",
        record=Record(
            outcome="no: a job that succeeded is deleted",
            attempt_log="no: a counter and the last error",
            events="in the worker's process only",
            acknowledgement="after a commit to disk",
        ),
        submitted_per_second=5_000,
        program="graphile_worker",
        package="graphile-worker",
    ),
    NodePeer(
        name="BullMQ",
        store=StoreKind.REDIS,
        settings="a process per core, concurrency 100; `addBulk` of 1,000",
        record=Record(
            outcome="kept, with the return value",
            attempt_log="no: a counter and the stack traces of failures",
            events="a Redis stream, trimmed to about 10,000 events",
            acknowledgement=REDIS_ACKNOWLEDGEMENT,
        ),
        submitted_per_second=3_000,
        program="bullmq",
        package="bullmq",
    ),
    PythonPeer(
        name="huey",
        store=StoreKind.REDIS,
        settings="a consumer per core with 50 greenlets, scheduler interval 1 s (the minimum); tasks one by one",
        record=Record(
            outcome="kept until it is read, with the return value",
            attempt_log="no",
            events="signals in the consumer's process only",
            acknowledgement=REDIS_ACKNOWLEDGEMENT + "; a task that runs when its consumer is killed is lost",
        ),
        submitted_per_second=500,
        module="huey_driver",
        package="huey",
        worker=(
            "-c", "from gevent import monkey; monkey.patch_all(); from huey.bin import huey_consumer as program;"
            " program.consumer_main()", "benchmarks.peers.python.huey_driver.app", "--workers", "50",
            "--worker-type", "greenlet", "--scheduler-interval", "1", "--delay", "0.02", "--max-delay", "0.2",
            "--no-periodic", "--quiet",
        ),
    ),
    PythonPeer(
        name="Celery",
        store=StoreKind.REDIS,
        settings="a worker per core with a prefork pool of 2, prefetch multiplier 64, late acknowledgement,"
        " visibility timeout above the longest ETA; tasks one by one",
        record=Record(
            outcome="kept for a day, with the return value",
            attempt_log="no",
            events="broadcast to listeners if switched on, not stored",
            acknowledgement=REDIS_ACKNOWLEDGEMENT,
        ),
        submitted_per_second=400,
        far_future="its guide advises against ETAs beyond some minutes: workers keep all of them in memory",
        module="celery_driver",
        package="celery",
        worker=(
            "-m", "celery", "-A", "benchmarks.peers.python.celery_driver", "worker", "--loglevel", "ERROR",
            "--pool", "prefork", "--concurrency", "2", "--hostname", "worker{number}@localhost",
            "--without-gossip", "--without-mingle",
        ),
    ),
)  # fmt: skip


def find_candidates(names: Sequence[str]) -> list[Candidate]:
    """Return the candidates whose names contain one of these texts, or all. Raise ValueError if one fits none."""
    if not names:
        return list(CANDIDATES)
    for name in names:
        if not any(name.lower() in candidate.name.lower() for candidate in CANDIDATES):
            known = "; ".join(candidate.name for candidate in CANDIDATES)
            raise ValueError(f"no candidate is called {name!r}; there are: {known}")
    return [one for one in CANDIDATES if any(name.lower() in one.name.lower() for name in names)]

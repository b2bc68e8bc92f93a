"""huey, a comparable Python task queue, at the same burst. It is installed into an environment of its own."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from benchmarks.command_line import find_service_url
from benchmarks.processes import BenchmarkError, PeakMemory, create_virtual_environment, start_process
from benchmarks.report import Report, log_progress
from benchmarks.system import Target, Workspace, build_environment

PACKAGES = ("huey", "redis", "requests")
ENQUEUED_PER_SECOND = 2_500  # the first estimate, by which the due time is chosen
START_SECONDS = 4.0
MAX_ENQUEUE_ATTEMPTS = 5


class HueyPeer:
    """huey with one store, and one number of consumer processes and threads."""

    def __init__(
        self, python: Path, store: str, consumers: int, threads: int, folder: Path, redis_url: str | None
    ) -> None:
        self.name = f"huey on {'Redis' if store == 'redis' else 'SQLite'}, {consumers}x{threads}"
        self._python = str(python)
        self._consumers = consumers
        self._threads = threads
        self._env = build_environment(
            PYTHONPATH=str(Path(__file__).parent),
            HUEY_STORE=store,
            HUEY_FILE=str(folder / "huey.sqlite3"),
            HUEY_REDIS_URL=redis_url or "",
        )
        self._folder = folder

    def run_burst(self, target: Target, calls: int, label: str) -> dict[str, float]:
        """Let huey send `calls` requests that are due at one moment."""
        path = f"/ok?{label}"
        with contextlib.ExitStack() as stack:
            stack.callback(self._run, "flush")
            due, submitted = self._enqueue(target.build_url(path), calls)
            consumers = [stack.enter_context(self._start_consumer(n)) for n in range(self._consumers)]
            with PeakMemory(lambda: [popen.pid for popen in consumers]) as peak:
                requests = target.collect(path, calls, due - time.time() + 60 + calls / 50)
        times = [request.time for request in requests]
        return {
            "per_second": calls / (max(times) - due),
            "per_second_from_first": calls / max(1e-6, max(times) - min(times)),
            "submitted_per_second": submitted,
            "peak_mb": peak.mb,
        }

    def _enqueue(self, url: str, calls: int) -> tuple[float, float]:
        """Enqueue tasks that are due at one moment. Return that moment and the tasks enqueued per second.

        Consumers are started afterwards, because on SQLite their polling makes enqueuing many times slower.
        """
        for attempt in range(MAX_ENQUEUE_ATTEMPTS):
            self._run("flush")
            started = time.time()
            due = started + START_SECONDS + 2**attempt * calls / ENQUEUED_PER_SECOND
            self._run("enqueue", str(calls), repr(due), url)
            if time.time() < due - START_SECONDS:
                return due, calls / (time.time() - started)
        raise BenchmarkError(f"{self.name} accepts tasks too slowly")

    def _run(self, *arguments: str) -> None:
        program = "import huey_app; huey_app.main()"
        subprocess.run([self._python, "-c", program, *arguments], env=self._env, check=True, timeout=300)

    @contextlib.contextmanager
    def _start_consumer(self, number: int) -> Iterator[subprocess.Popen[bytes]]:
        argv = [
            self._python, "-m", "huey.bin.huey_consumer", "huey_app.app", "--workers", str(self._threads),
            "--worker-type", "thread", "--scheduler-interval", "1", "--delay", "0.1", "--max-delay", "0.2",
            "--no-periodic", "--quiet",
        ]  # fmt: skip
        log = self._folder / f"huey-{number}.log"
        with log.open("wb") as file, start_process(argv, self._env, stdout=file, stderr=file) as popen:
            yield popen


def install_huey(folder: Path) -> tuple[Path, str]:
    """Install huey into a new virtual environment. Return its Python and huey's version."""
    log_progress("installing huey into a temporary environment")
    try:
        python = create_virtual_environment(folder / "peer-venv", PACKAGES)
    except BenchmarkError as error:
        raise BenchmarkError(f"huey cannot be installed; --no-peers runs without it: {error}") from None
    program = "import importlib.metadata as m; print(m.version('huey'))"
    version = subprocess.run([str(python), "-c", program], capture_output=True, text=True)
    return python, version.stdout.strip()


def ask_redis(server: SplitResult, *commands: str) -> str | None:
    """Return the answer to the last of these commands, or None if Redis does not answer."""
    try:
        answer = None
        with (
            socket.create_connection((server.hostname, server.port or 6379), timeout=2) as connection,
            connection.makefile("rb") as answers,
        ):
            for command in commands:
                connection.sendall(f"{command}\r\n".encode())
                answer = answers.readline().decode().strip()
            return answer
    except OSError:
        return None


def find_empty_redis_database(url: str) -> str | None:
    """Return the URL of a Redis database that is empty and may therefore be flushed, or None."""
    server = urlsplit(url)
    for number in range(15, 0, -1):
        if ask_redis(server, f"SELECT {number}", "DBSIZE") == ":0":
            return server._replace(path=f"/{number}").geturl()
    return None


def build_huey_peers(
    workspace: Workspace, workers: Sequence[tuple[int, int]], report: Report
) -> list[HueyPeer]:
    """Return huey on each store with each number of consumers and threads: the machine decides which is best."""
    python, version = install_huey(workspace.folder)
    report.on["huey"] = version
    url = find_service_url("redis")
    redis_url = find_empty_redis_database(url)
    stores = ["sqlite"] if redis_url is None else ["redis", "sqlite"]
    if redis_url is None:
        report.add_note(
            f"huey ran on SQLite only, because no Redis with an empty database answers at {url}. "
            "Start one: make services NAMES=redis"
        )
    return [
        HueyPeer(python, store, *numbers, workspace.folder, redis_url)
        for store in stores
        for numbers in workers
    ]

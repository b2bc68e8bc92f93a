"""huey, a task queue of the same kind and language, at the same burst: installed into an environment of its own."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from benchmarks import processes
from benchmarks.figures import Report, say
from benchmarks.harness import BenchmarkError, Stage, Target, environment, process, service_url

PACKAGES = ("huey", "redis", "requests")
INSTALL_SECONDS = 300.0
ENQUEUED_PER_SECOND = 2_500  # at first: by this the due time is set
START_SECONDS = 4.0


class Huey:
    """One way of storing its tasks."""

    def __init__(
        self, python: Path, store: str, consumers: int, threads: int, folder: Path, redis_url: str | None
    ) -> None:
        self.name = f"huey on {'Redis' if store == 'redis' else 'SQLite'}, {consumers}x{threads}"
        self._python = str(python)
        self._consumers = consumers
        self._threads = threads
        self._env = {
            **environment(),
            "PYTHONPATH": str(Path(__file__).parent),
            "HUEY_STORE": store,
            "HUEY_FILE": str(folder / "huey.sqlite3"),
            "HUEY_REDIS_URL": redis_url or "",
        }
        self._folder = folder

    def burst(self, target: Target, calls: int, label: str) -> dict[str, float]:
        path = f"/ok?{label}"
        with contextlib.ExitStack() as stack:
            stack.callback(self._run, "flush")
            due, submitted = self._enqueue(target.url(path), calls)
            consumers = [stack.enter_context(self._consumer(n)) for n in range(self._consumers)]
            with processes.Peak(lambda: [popen.pid for popen in consumers]) as peak:
                sent = target.collect(path, calls, due - time.time() + 60 + calls / 50)
        times = [one.time for one in sent]
        return {
            "per_second": calls / (max(times) - due),
            "per_second_from_first": calls / max(1e-6, max(times) - min(times)),
            "submitted_per_second": submitted,
            "peak_mb": peak.mb,
        }

    def _enqueue(self, url: str, calls: int) -> tuple[float, float]:
        """When they are due, and how many were taken a second. Consumers are started after this, while there still
        is time: on SQLite their looking for work would slow it down many times."""
        for slower in range(5):
            self._run("flush")
            began = time.time()
            due = began + START_SECONDS + 2**slower * calls / ENQUEUED_PER_SECOND
            self._run("enqueue", str(calls), repr(due), url)
            if time.time() < due - START_SECONDS:
                return due, calls / (time.time() - began)
        raise BenchmarkError(f"{self.name} takes tasks too slowly")

    def _run(self, *arguments: str) -> None:
        program = "import huey_app; huey_app.main()"
        subprocess.run([self._python, "-c", program, *arguments], env=self._env, check=True, timeout=300)

    @contextlib.contextmanager
    def _consumer(self, number: int) -> Iterator[subprocess.Popen[bytes]]:
        argv = [
            self._python, "-m", "huey.bin.huey_consumer", "huey_app.app", "--workers", str(self._threads),
            "--worker-type", "thread", "--scheduler-interval", "1", "--delay", "0.1", "--max-delay", "0.2",
            "--no-periodic", "--quiet",
        ]  # fmt: skip
        log = self._folder / f"huey-{number}.log"
        with log.open("wb") as file, process(argv, self._env, stdout=file, stderr=file) as popen:
            yield popen


def install(folder: Path) -> tuple[Path, str]:
    """Its Python, and its version."""
    home = folder / "peer-venv"
    say("installing huey into an environment of its own")
    python = home / "bin" / "python"
    for argv in (
        [sys.executable, "-m", "venv", str(home)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES],
    ):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        if done.returncode:
            raise BenchmarkError(f"huey cannot be installed (--no-peers does without): {done.stderr[-500:]}")
    asked = subprocess.run(
        [str(python), "-c", "import importlib.metadata as m; print(m.version('huey'))"],
        capture_output=True,
        text=True,
    )
    return python, asked.stdout.strip()


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


def hueys(stage: Stage, workers: Sequence[tuple[int, int]], report: Report) -> list[Huey]:
    """On each store with each of these numbers of consumers and threads: which suits it best depends on the machine."""
    python, version = install(stage.folder)
    report.on["huey"] = version
    url = service_url("redis")
    redis_url = find_empty_redis_database(url)
    stores = ["sqlite"] if redis_url is None else ["redis", "sqlite"]
    if redis_url is None:
        report.note(
            f"huey ran on SQLite only, because no Redis with an empty database answers at {url}. "
            "Start one: make services NAMES=redis"
        )
    return [Huey(python, store, *numbers, stage.folder, redis_url) for store in stores for numbers in workers]

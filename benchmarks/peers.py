"""huey, a task queue of the same kind and language, at the same burst: installed into an environment of its own."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.figures import say
from benchmarks.harness import BenchmarkError, Stage, Target, environment, process, until

PACKAGES = ("huey", "redis", "requests")
REDIS = ("127.0.0.1", 6379)
INSTALL_SECONDS = 300.0
ENQUEUE_PER_SECOND = 2_500  # at the least: by this the due time is set


@dataclass(frozen=True)
class Workers:
    """How a peer is run: several consumers, each with threads."""

    consumers: int
    threads: int


class Huey:
    """One way of storing its tasks."""

    def __init__(self, python: Path, store: str, workers: Workers, folder: Path, redis_db: int | None) -> None:
        self.name = f"huey on {'Redis' if store == 'redis' else 'SQLite'}"
        self._python = str(python)
        self._workers = workers
        self._env = {
            **environment(),
            "PYTHONPATH": str(Path(__file__).parent),
            "HUEY_STORE": store,
            "HUEY_FILE": str(folder / "huey.sqlite3"),
            "HUEY_DB": str(redis_db),
        }
        self._folder = folder

    def burst(self, target: Target, calls: int, label: str) -> dict[str, float]:
        url = target.url(f"/ok?{label}")
        with contextlib.ExitStack() as stack:
            stack.callback(self._run, "flush")
            self._run("flush")
            consumers = [stack.enter_context(self._consumer(n)) for n in range(self._workers.consumers)]
            time.sleep(1.5)
            due = time.time() + calls / ENQUEUE_PER_SECOND + 2.0
            began = time.time()
            self._run("enqueue", str(calls), repr(due), url)
            enqueued = time.time()
            if enqueued > due:
                raise BenchmarkError(f"{self.name} took {enqueued - began:.0f} s to take {calls} tasks")
            with processes.Peak(lambda: [popen.pid for popen in consumers]) as peak:
                times = [sent.time for sent in target.collect(f"/ok?{label}", calls, due - began + 30 + calls / 50)]
        return {
            "per_second": calls / (max(times) - due),
            "per_second_from_first": calls / max(1e-6, max(times) - min(times)),
            "submitted_per_second": calls / (enqueued - began),
            "peak_mb": peak.mb,
        }

    def _run(self, *arguments: str) -> None:
        app = str(Path(__file__).with_name("huey_app.py"))
        subprocess.run([self._python, app, *arguments], env=self._env, check=True, timeout=300)

    @contextlib.contextmanager
    def _consumer(self, number: int) -> Iterator[subprocess.Popen[bytes]]:
        argv = [
            self._python, "-m", "huey.bin.huey_consumer", "huey_app.app", "--workers", str(self._workers.threads),
            "--worker-type", "thread", "--scheduler-interval", "1", "--delay", "0.01", "--max-delay", "0.05",
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


def redis_says(*words: str) -> str | None:
    """One command's answer; None when there is no Redis."""
    try:
        with socket.create_connection(REDIS, timeout=2) as connection, connection.makefile("rb") as answers:
            for command in (words[:2], words[2:]):
                if command:
                    connection.sendall((" ".join(command) + "\r\n").encode())
                    answer = answers.readline().decode().strip()
            return answer
    except OSError:
        return None


def free_redis_db() -> int | None:
    """A database of Redis in which nothing is: it will be flushed."""
    for number in range(15, 0, -1):
        if redis_says("SELECT", str(number), "DBSIZE") == ":0":
            return number
    return None


def hueys(stage: Stage, workers: Workers, report: Any) -> Sequence[Huey]:
    python, version = install(stage.folder)
    report.on["huey"] = version
    redis_db = free_redis_db()
    stores = ["redis", "sqlite"] if redis_db is not None else ["sqlite"]
    if redis_db is None:
        report.note("No Redis with an empty database answers at 127.0.0.1:6379: huey is run on SQLite only.")
    return [Huey(python, store, workers, stage.folder, redis_db) for store in stores]


__all__ = ["Huey", "Workers", "hueys", "until"]

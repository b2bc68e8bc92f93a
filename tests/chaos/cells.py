"""Cells: whole deployments, each with a database of its own, around one timer store.

A cell is lost with its database, or gets an earlier state of it back. Its users know what was acknowledged to them.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from django.conf import settings

from eventservice.client import ApiError, Client, Unreachable
from tests.process_harness import ProcessHarness, Program, find_free_address, is_serving, wait_until

ENGINES = 2
NAMESPACE, STORE = "reminders", "fleet"
# Longer than the service waits for a store, so that the answer says whether the outcome is known.
CLIENT_TIMEOUT_SECONDS = 20.0
MAX_REPEATS_SECONDS = 240.0
ACKNOWLEDGED = "acknowledged"
# By the codes of errors.
UNKNOWN = {"no response", "outcome_unknown"}
UNCHANGED = {"store_unavailable", "database_busy"}
REFUSED = {"timer_firing", "not_found"}


class Cell:
    """A deployment with a database in a file, a web process, and engines that are killed and frozen."""

    def __init__(self, harness: ProcessHarness, name: str, store_url: str, tenant_id: UUID) -> None:
        self.name = name
        self._harness = harness
        self._database = harness.folder / f"{name}.db"
        self._env = {
            "DATABASE_URL": "",
            "DB_PATH": str(self._database),
            "TIMER_STORES": f"{STORE}={store_url}",
            "NODE_LEASE_SECONDS": "2",
        }
        self.is_lost = False
        self._run("migrate")
        self._run("tenant", "create", "acme", "--id", str(tenant_id))
        self._run("tenant", "namespace", "acme", NAMESPACE, "--store", STORE)
        document = self._run("apikey", "create", "--tenant", "acme", "--json")
        self.api_key: str = json.loads(document)["key"]
        self._address = find_free_address()
        self.url = f"http://{self._address}"
        self._start()

    def _run(self, *command: str) -> str:
        argv = [sys.executable, "manage.py", *command]
        env = {**self._harness.env, **self._env}
        run = subprocess.run(argv, env=env, cwd=settings.BASE_DIR, capture_output=True, text=True)
        assert run.returncode == 0, f"{command}: {run.stdout}{run.stderr}"
        return run.stdout

    def _start(self) -> None:
        self._web = self._harness.start_web(self._address, "--threads", "8", **self._env)
        self.engines = [self._start_engine() for _ in range(ENGINES)]
        wait_until(lambda: is_serving(self.url), f"cell {self.name} serves requests")

    def _start_engine(self) -> Program:
        return self._harness.start_engine(**self._env)

    def kill_engine(self, number: int) -> None:
        self.engines[number].kill()
        self.engines[number] = self._start_engine()

    def back_up(self) -> None:
        self._run("backup", str(self._backup))

    @property
    def _backup(self) -> Path:
        return self._harness.folder / f"{self.name}-backup.db"

    def restore(self) -> None:
        """Go back to the state of the backup. What has happened since is forgotten."""
        for program in (self._web, *self.engines):
            program.kill_group()
        self._run("restore", str(self._backup))
        self._run("dispatch", "resume")  # a restored database begins paused
        self._start()

    def lose(self) -> None:
        """End all processes, and delete the database."""
        self.is_lost = True
        for program in (self._web, *self.engines):
            program.kill_group()
        self._database.unlink()


@dataclass
class Setting:
    """A request of a user to set a timer, or to delete it: then there is no due time."""

    due: datetime | None
    # What the answer said. None: it is unknown whether the request took effect.
    revision: str | None = None
    acknowledged_at: float | None = None


@dataclass
class UserTimer:
    """A timer of a user, who alone changes it, with everything that was asked for and acknowledged."""

    timer_id: str
    path: str
    settings: list[Setting] = field(default_factory=list)


class Users:
    """Users who set, change and delete timers in any cell, and repeat what was not acknowledged."""

    def __init__(self, cells: list[Cell], tenant_id: UUID, target_url: str, rng: random.Random) -> None:
        self.timers: list[UserTimer] = []
        self.answers: Counter[str] = Counter()
        self._cells, self._tenant_id, self._target_url, self._rng = cells, tenant_id, target_url, rng
        self._lock = threading.Lock()

    def run(self, count: int, seconds: float, users: int) -> None:
        """Set so many timers, spread over a time, by so many users at once."""
        numbers: Iterator[int] = iter(range(count))
        started, threads, errors = time.monotonic(), [], list[BaseException]()

        def use() -> None:
            try:
                while (number := self._next(numbers)) is not None:
                    time.sleep(max(0.0, started + seconds * number / count - time.monotonic()))
                    self._use_timer(number, seconds)
            except BaseException as error:
                errors.append(error)
                raise

        for _ in range(users):
            threads.append(threading.Thread(target=use))
            threads[-1].start()
        for thread in threads:
            thread.join()
        assert errors == []

    def _next(self, numbers: Iterator[int]) -> int | None:
        with self._lock:
            return next(numbers, None)

    def _use_timer(self, number: int, seconds: float) -> None:
        with self._lock:
            rng = random.Random(self._rng.random())
        name = rng.choices(("ok", "callback-retry"), (3, 1))[0]
        timer = UserTimer(f"timer-{number}", f"/{name}?timer={number}")
        self.timers.append(timer)
        self._set(timer, rng, rng.choice((0.0, 2.0, 10.0, rng.uniform(0.0, seconds / 2))))
        if rng.random() < 0.3:
            time.sleep(rng.choice((0.0, 0.5, 2.0)))
            if rng.random() < 0.5:
                self._delete(timer, rng)
            else:
                self._set(timer, rng, rng.uniform(0.0, 20.0))

    def _set(self, timer: UserTimer, rng: random.Random, due_in: float) -> None:
        due = datetime.fromtimestamp(time.time() + due_in, UTC)

        def set_timer(client: Client) -> str:
            made = client.create_timer(
                timer.timer_id,
                due.isoformat(timespec="milliseconds"),
                self._target_url + timer.path,
                namespace=NAMESPACE,
                retryPolicy={"maxAttempts": 20, "initialInterval": "1s", "maxInterval": "2s"},
                callbackTimeoutSeconds=3,
            )
            return str(made["serviceCallId"])

        self._try(timer, due, set_timer, rng)

    def _delete(self, timer: UserTimer, rng: random.Random) -> None:
        def delete_timer(client: Client) -> None:
            client.delete_timer(timer.timer_id, namespace=NAMESPACE)

        self._try(timer, None, delete_timer, rng)

    def _try(
        self,
        timer: UserTimer,
        due: datetime | None,
        act: Callable[[Client], str | None],
        rng: random.Random,
    ) -> None:
        """Repeat a request in any cell until it is acknowledged or refused."""
        deadline = time.monotonic() + MAX_REPEATS_SECONDS
        while True:
            cell = rng.choice([cell for cell in self._cells if not cell.is_lost])
            setting = Setting(due)
            timer.settings.append(setting)
            code = self._ask(cell, setting, act)
            with self._lock:
                self.answers[code] += 1
            if code not in UNKNOWN and code != ACKNOWLEDGED:
                timer.settings.remove(setting)
            # It fires at this moment, has fired, or was deleted by a request without an answer.
            if code in REFUSED or code == ACKNOWLEDGED:
                return
            assert code in UNKNOWN | UNCHANGED, code
            assert time.monotonic() < deadline, f"{timer.timer_id}: {code}"
            time.sleep(rng.uniform(0.1, 1.0))

    def _ask(self, cell: Cell, setting: Setting, act: Callable[[Client], str | None]) -> str:
        timeout = CLIENT_TIMEOUT_SECONDS
        with Client(cell.url, self._tenant_id, cell.api_key, timeout=timeout, retries=0) as client:
            try:
                setting.revision = act(client)
            except Unreachable:
                return "no response"
            except ApiError as error:
                return error.code
        setting.acknowledged_at = time.time()
        return ACKNOWLEDGED

"""Machines that share a database: clusters and web processes that are killed, frozen and stopped, and come back.

A machine is a process group: what a power failure or a pause of the virtual machine hits at once.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from enum import StrEnum
from itertools import cycle
from typing import Any
from uuid import UUID

from eventservice.client import SERVICE_UNAVAILABLE, ApiError, Client, Unreachable
from eventservice.db.leases import Lease
from orchestration.commands import SubmitServiceCall
from tests.process_harness import Program

# A frozen web process accepts connections and does not answer.
CLIENT_TIMEOUT_SECONDS = 4.0
# More would wait longer for a busy web process than the timeout, and repeat what it has yet to do.
USERS = 8
MAX_SUBMISSION_SECONDS = 120.0


class Disturbance(StrEnum):
    KILL = "machine killed"
    FREEZE = "machine frozen"
    STOP = "machine stopped"
    KILL_MAIN = "main process killed"
    KILL_WORKER = "worker killed"
    FREEZE_WORKER = "worker frozen"


# The web workers listen on until they notice that their main process is gone, and its successor could not.
OF_WEB = sorted(set(Disturbance) - {Disturbance.KILL_MAIN})
OF_CLUSTERS = sorted(Disturbance)


class Machine:
    """The processes of a machine, which suffers at most one disturbance at a time."""

    def __init__(self, start: Callable[[], Program], disturbances: list[Disturbance]) -> None:
        self.program = start()
        self._start = start
        self._disturbances = disturbances
        self._deck: list[Disturbance] = []
        self._recover: Callable[[], None] | None = None
        self._recover_at = 0.0

    @property
    def is_disturbed(self) -> bool:
        return self._recover is not None

    def disturb(self, rng: random.Random) -> str:
        """Kill, freeze or stop it, or a part of it, in each way before one is repeated. Return how."""
        if not self._deck:
            self._deck = rng.sample(self._disturbances, len(self._disturbances))
        disturbance = self._deck.pop()
        self._recover = self._replace
        match disturbance:
            case Disturbance.KILL:
                self.program.kill_group()
            case Disturbance.KILL_MAIN:
                self.program.kill()
            case Disturbance.STOP:
                self.program.terminate()
            case Disturbance.FREEZE:
                self.program.freeze_group()
                self._recover = self.program.thaw_group
            case Disturbance.KILL_WORKER | Disturbance.FREEZE_WORKER:
                worker = rng.choice(self.program.list_children() or [self.program.pid])
                is_killed = disturbance is Disturbance.KILL_WORKER
                send(worker, signal.SIGKILL if is_killed else signal.SIGSTOP)
                self._recover = lambda: send(worker, signal.SIGCONT)
        self._recover_at = time.monotonic() + rng.uniform(1.0, 10.0)
        return disturbance.value

    def recover_if_due(self) -> None:
        # Whoever waited for it to stop could not thaw other machines meanwhile.
        is_stopping = self._recover == self._replace and self.program.is_running
        if time.monotonic() >= self._recover_at and not is_stopping:
            self.recover()

    def recover(self) -> None:
        """End the disturbance. Replace the processes if they have ended, as they do when one that they need is killed."""
        if self._recover is not None:
            self._recover()
            self._recover = None
        elif not self.program.is_running:
            self._replace()

    def stop(self) -> None:
        self.program.terminate()
        self.program.wait()

    def _replace(self) -> None:
        self.program.wait()
        self.program = self._start()


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Users:
    """Users who submit calls to any web process, each call with its idempotency key until it is accepted."""

    def __init__(self, urls: list[str], api_keys: Mapping[UUID, str], namespace: str) -> None:
        self.accepted: dict[str, SubmitServiceCall] = {}
        self.repeats = 0
        self._urls = urls
        self._api_keys = api_keys
        self._namespace = namespace
        self._pool = ThreadPoolExecutor(USERS)
        self._submissions: list[Future[None]] = []

    @property
    def are_busy(self) -> bool:
        return len(self._submissions) - len(self.accepted) >= USERS

    def submit(self, command: SubmitServiceCall) -> None:
        self._submissions.append(self._pool.submit(self._submit, command))

    def close(self) -> int:
        """Wait until every call has been accepted. Return how many there are."""
        self._pool.shutdown()
        for submission in self._submissions:
            submission.result()
        return len(self._submissions)

    def _submit(self, command: SubmitServiceCall) -> None:
        deadline = time.monotonic() + MAX_SUBMISSION_SECONDS
        for url in cycle(random.sample(self._urls, len(self._urls))):
            if call := self._try(url, command):
                self.accepted[call["serviceCallId"]] = command
                return
            assert time.monotonic() < deadline, "no web process has accepted the call"
            time.sleep(0.1)
            self.repeats += 1

    def _try(self, url: str, command: SubmitServiceCall) -> dict[str, Any] | None:
        key, request = self._api_keys[command.tenant_id], command.request
        with Client(url, command.tenant_id, key, timeout=CLIENT_TIMEOUT_SECONDS, retries=0) as client:
            try:
                return client.submit(
                    command.name,
                    request.method,
                    request.url,
                    body=request.body,
                    idempotency_key=str(command.service_call_id),
                    **build_options(command),
                    namespace=self._namespace,
                )
            except Unreachable:
                return None
            except ApiError as error:
                if error.status == SERVICE_UNAVAILABLE:
                    return None
                raise


def build_options(command: SubmitServiceCall) -> dict[str, Any]:
    """Return members of the submission by their API names. A client cannot choose the contract of responses."""
    options: dict[str, Any] = {"dueAt": get_due_time(command).isoformat(), "delivery": command.delivery}
    if policy := command.retry_policy:
        options["retryPolicy"] = {
            "maxAttempts": policy.max_attempts,
            "initialInterval": f"{policy.initial_interval}s",
            "maxInterval": f"{policy.max_interval}s",
        }
    return options


def get_due_time(command: SubmitServiceCall) -> datetime:
    assert command.due_at is not None
    return command.due_at


class OwnershipWatch:
    """Watches the leases of shards or partitions. With each new owner the version must rise: that fences the one before."""

    def __init__(self, model: type[Lease]) -> None:
        self.moves = 0
        self._model = model
        self._seen: dict[int, tuple[int, UUID | None]] = {}

    def look(self) -> None:
        for key, version, owner in self._model._default_manager.values_list("pk", "version", "owner_id"):
            last_version, last_owner = self._seen.get(key, (version, owner))
            assert version >= last_version
            if owner != last_owner:
                assert version > last_version, (
                    f"{self._model.__name__} {key}: {last_owner} and {owner} own it"
                )
                self.moves += owner is not None
            self._seen[key] = version, owner

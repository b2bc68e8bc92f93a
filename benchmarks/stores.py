"""Durable timers in timer stores: how fast they are created, fed and fired, with more and more timers pending.

The built-in storage and each store take turns, each with a relational database of its own, which keeps its history during
the run. Timers are created over REST before the look-ahead, so that a feeder takes them. Pending timers, and those that were
removed before from the same shards, are written in bulk while the system is stopped: see benchmarks/store_servers.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from benchmarks.burst import summarize_measured
from benchmarks.command_line import create_parser, find_service_url, parse_positive, run_program
from benchmarks.load_generator import LoadJob, compute_rate, count_statuses, run_load
from benchmarks.pending import CHUNK_SIZE, YEAR_SECONDS, add_pending_calls, parse_levels
from benchmarks.processes import BenchmarkError, wait_until
from benchmarks.report import Report, compute_ratio, log_progress, summarize_distribution
from benchmarks.store_servers import BATCH_SIZE, SERVERS, STORE, StoreServer, open_server, split
from benchmarks.system import (
    AgentClient,
    System,
    Target,
    Workspace,
    build_environment,
    rotate,
    start_agent,
    start_own_system,
    start_target,
)
from eventservice.kernel.ids import new_id
from timers.stores.factory import build_store
from timers.stores.port import QualifiedNamespace, Revision, StoredTimer, TimerKey, round_up
from timers.stores.store_spec import StoreSpec

BUILT_IN = "built-in"
NAMESPACE = "benchmark"
# Of the feeder. A timer that is set later is fed at once.
LOOK_AHEAD_SECONDS = 5.0
LEAD_SECONDS = 2.0
CREATED_PER_SECOND = 100  # the first estimate, by which the due time is chosen
MAX_CREATE_ATTEMPTS = 4
WARM_UP_TIMERS = 100
CLIENTS = 8
PAYLOAD = {"text": "y" * 150}
DUE_READS, DUE_LIMIT = 200, 500
# Removed timers were due within this time before the run: a store may have kept traces of them.
REMOVED_WITHIN_SECONDS = 3600.0

Measured = dict[str, Any]
OpenStore = Callable[[], contextlib.AbstractContextManager[StoreServer]]


@dataclass
class Candidate:
    """The built-in storage, if there is no server, or a timer store."""

    name: str
    database: dict[str, str]
    server: StoreServer | None
    tenant: dict[str, str]

    @property
    def store_item(self) -> str:
        """Return the value of TIMER_STORES."""
        return f"{STORE}={self.server.url}" if self.server else ""

    @property
    def namespace(self) -> QualifiedNamespace:
        return QualifiedNamespace(uuid.UUID(self.tenant["id"]), NAMESPACE)


class Created(NamedTuple):
    """Timers that were created in time: the label in their ids and URLs, and when the first one is due."""

    label: str
    due: float
    per_second: float
    relational_bytes: int


# --- preparation ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def prepare_candidate(
    workspace: Workspace,
    target: Target,
    name: str,
    open_store: OpenStore | None,
    shards: int,
) -> Iterator[Candidate]:
    """Create the databases, a tenant, and a namespace whose timers are in the store."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(open_store()) if open_store else None
        candidate = Candidate(name, workspace.create_own_database(), server, {})
        with start_store_agent(workspace, candidate, target) as agent:
            agent("migrate")
            candidate.tenant = agent("ensure_tenant", name="stores", limits=False)
            store = ""
            if server is not None:
                store = STORE
                agent("migrate_store", store=store)
            agent(
                "ensure_namespace",
                tenant=candidate.tenant["id"],
                name=NAMESPACE,
                num_shards=shards,
                store=store,
            )
        yield candidate
        workspace.delete_database(candidate.database)


@contextlib.contextmanager
def start_store_agent(workspace: Workspace, candidate: Candidate, target: Target) -> Iterator[AgentClient]:
    """Start an agent with the settings of the system, which are a part of what a namespace is declared with."""
    env = build_environment(
        candidate.database, TIMER_STORES=candidate.store_item, EGRESS_ALLOW=target.address
    )
    with start_agent(workspace, env) as agent:
        yield agent


def build_timers(
    candidate: Candidate, shards: int, count: int, label: str, first: float, over: float
) -> Iterator[StoredTimer]:
    """Yield rows of timers, due evenly within `over` seconds after `first`."""
    created_at = round_up(datetime.now(UTC))
    for number in range(count):
        execute_at = round_up(datetime.fromtimestamp(first, UTC) + timedelta(seconds=over * number / count))
        yield StoredTimer(
            key=TimerKey.build(candidate.namespace, f"{label}-{number}", shards),
            revision=Revision(new_id()),
            execute_at=execute_at,
            requested_at=execute_at,
            created_at=created_at,
            callback_url="http://127.0.0.1:9/ok",  # Nothing is sent.
            payload=PAYLOAD,
        )


def add_pending_timers(
    workspace: Workspace, candidate: Candidate, shards: int, count: int, label: str
) -> None:
    """Add timers that are due in the year after next month."""
    if candidate.server is None:
        add_pending_calls(workspace, candidate.database, "http://127.0.0.1:9/ok", count)
        return
    first = time.time() + YEAR_SECONDS / 12
    for batch in split(build_timers(candidate, shards, count, label, first, YEAR_SECONDS), CHUNK_SIZE):
        candidate.server.insert(batch)


def remove_past_timers(candidate: Candidate, shards: int, count: int) -> None:
    """Leave what timers leave that were in the store within the last hour, and have been removed."""
    if candidate.server is None:
        return
    first = time.time() - REMOVED_WITHIN_SECONDS
    past = build_timers(candidate, shards, count, "past", first, REMOVED_WITHIN_SECONDS)
    for batch in split(past, CHUNK_SIZE):
        candidate.server.insert(batch)
        candidate.server.remove(batch)


# --- the system -----------------------------------------------------------------------------------------------


def create_timers(
    system: System, target: Target, candidate: Candidate, count: int, spacing: float, label: str, rate: float
) -> Created:
    """Create timers over REST, one by one with several clients, before the look-ahead of the first one.

    They are due one after the other, `spacing` seconds apart. `rate` estimates how many are created per second. On a busy
    machine this may take several attempts, each with more time.
    """
    for attempt in range(MAX_CREATE_ATTEMPTS):
        due = round(time.time() + LOOK_AHEAD_SECONDS + LEAD_SECONDS + 2**attempt * count / rate, 3)
        path = f"/ok?{label}"
        bodies = [
            build_timer_body(target.build_url(path), f"{label}-{number}", due + spacing * number)
            for number in range(count)
        ]
        job = LoadJob(
            system.port,
            f"/api/v1/tenants/{candidate.tenant['id']}/timers/create",
            bodies=bodies,
            headers={"Authorization": f"Bearer {candidate.tenant['key']}"},
            count=count,
            connections=CLIENTS,
            keep=False,
        )
        before = system.agent("measure_database_bytes")
        responses = run_load(job)
        if any(response.status != 200 for response in responses):
            body = next(response.body for response in responses if response.status != 200)
            raise BenchmarkError(f"timers were refused: {count_statuses(responses)}; {body[:300]}")
        growth = system.agent("measure_database_bytes") - before
        if time.time() < due - LOOK_AHEAD_SECONDS:
            return Created(label, due, compute_rate(responses), growth)
        log_progress(f"{count} timers could not be created in time; trying again")
        target.collect(path, count, max(0.0, due - time.time()) + spacing * count + 60 + count / 100)
        label += "-again"
    raise BenchmarkError(f"{count} timers could not be created before the look-ahead")


def build_timer_body(url: str, timer_id: str, due: float) -> str:
    execute_at = datetime.fromtimestamp(due, UTC).isoformat(timespec="milliseconds")
    return json.dumps(
        {
            "namespace": NAMESPACE,
            "id": timer_id,
            "executeAt": execute_at,
            "callbackUrl": url,
            "payload": PAYLOAD,
        }
    )


def run_timer_burst(
    system: System, target: Target, candidate: Candidate, count: int, label: str, rate: float
) -> Measured:
    """Run timers that are due at one moment, until their outcomes are recorded and their rows are removed."""
    agent, tenant = system.agent, candidate.tenant["id"]
    created = create_timers(system, target, candidate, count, 0.0, label, rate)
    last_event = agent("find_last_event_id")

    def have_ended() -> bool:
        by_status: dict[str, int] = agent("summarize_progress", tenant=tenant, due=created.due)["by_status"]
        return by_status.get("Succeeded", 0) + by_status.get("Failed", 0) == count

    seconds = created.due - time.time() + 60 + count / 100
    requests = target.collect(f"/ok?{created.label}", count, seconds)
    wait_until(have_ended, "all timers have ended", 60.0, 0.1)
    ended = agent("summarize_progress", tenant=tenant, due=created.due)
    if ended["by_status"] != {"Succeeded": count} or len({request.call for request in requests}) != count:
        raise BenchmarkError(
            f"not every timer succeeded exactly once: {ended['by_status']}, {len(requests)} requests"
        )
    measured: Measured = {
        "created_per_second": created.per_second,
        "relational_bytes_per_timer": created.relational_bytes / count,
        "fired_per_second": count / (ended["last"] - created.due),
        "fed_per_second": None,
        "removed_per_second": None,
    }
    if candidate.server is not None:
        wait_until(lambda: not agent("count_marks"), "all rows are removed", 60 + count / 50, 0.1)
        measured["removed_per_second"] = count / (time.time() - created.due)
        measured["fed_per_second"] = agent("measure_feeding", after=last_event)
    system.wait_until_published()
    return measured


def run_timer_load(
    system: System,
    target: Target,
    candidate: Candidate,
    load: tuple[float, float],
    label: str,
    created_per_second: float,
) -> Measured:
    """Measure how late timers are that are due one after the other: so many per second, for so many seconds."""
    rate, seconds = load
    count = max(1, int(rate * seconds))
    created = create_timers(system, target, candidate, count, 1 / rate, label, created_per_second)
    wait = created.due - time.time() + seconds + 60
    requests = target.collect(f"/ok?{created.label}", count, wait)
    due = system.agent(
        "list_due_times", tenant=candidate.tenant["id"], namespace=NAMESPACE, prefix=f"{created.label}-"
    )
    late = summarize_distribution([(request.time - due[request.call]) * 1000 for request in requests], 2)
    return {"lateness_p50_ms": late["p50"], "lateness_p99_ms": late["p99"]}


# --- the store alone ------------------------------------------------------------------------------------------


def measure_due_reads(candidate: Candidate, shards: int) -> float:
    """Return the median of the milliseconds of a read of due timers, of which there are none."""
    store, now = build_store(StoreSpec.parse(candidate.store_item), "-"), round_up(datetime.now(UTC))
    until = now + timedelta(seconds=LOOK_AHEAD_SECONDS)
    times: list[float] = []
    try:
        for shard in random.choices(range(shards), k=DUE_READS):
            started = time.perf_counter()
            store.due(shard, now, until, None, DUE_LIMIT)
            times.append((time.perf_counter() - started) * 1000)
    finally:
        store.close()
    return median(times)


def measure_takes(candidate: Candidate, shards: int, count: int, label: str) -> Measured:
    """Take and remove timers in the store without the system, and the same by the client library alone."""
    assert candidate.server is not None
    server = candidate.server
    due = time.time() + YEAR_SECONDS / 24
    until = round_up(datetime.fromtimestamp(due, UTC))
    bare, stored = (
        list(build_timers(candidate, shards, count, f"{label}-{kind}", due, 1.0)) for kind in ("bare", "port")
    )
    server.insert(bare + stored)
    measured = {
        "bare_takes_per_second": _measure_rate(count, lambda: server.take(bare, until)),
        "bare_removals_per_second": _measure_rate(count, lambda: server.remove(bare)),
    }
    store = build_store(StoreSpec.parse(candidate.store_item), "-")
    try:
        now = round_up(datetime.now(UTC))
        taken: list[StoredTimer] = []
        by_shard: dict[int, list[StoredTimer]] = {}
        for timer in stored:
            by_shard.setdefault(timer.key.shard, []).append(timer)

        def take() -> None:
            for timers in by_shard.values():
                for page in split(timers, BATCH_SIZE):
                    taken.extend(store.take(page, now, until))

        def remove() -> None:
            for page in split(taken, BATCH_SIZE):
                store.remove([timer.take for timer in page])

        store.read_clock()  # connects
        measured["store_takes_per_second"] = _measure_rate(count, take)
        measured["store_removals_per_second"] = _measure_rate(count, remove)
    finally:
        store.close()
    if len(taken) != count:
        raise BenchmarkError(f"{candidate.name}: {len(taken)} of {count} timers could be taken")
    return measured


def _measure_rate(count: int, function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return count / (time.perf_counter() - started)


# --- the run --------------------------------------------------------------------------------------------------


def measure_once(
    workspace: Workspace, candidate: Candidate, target: Target, options: argparse.Namespace, label: str
) -> Measured:
    """Run the burst and the steady load on a new system, and then measure the store without it."""
    with start_own_system(
        workspace, candidate.database, [target], TIMER_STORES=candidate.store_item
    ) as system:
        if candidate.server is not None:
            is_feeding = partial(system.agent, "is_feeding", store=STORE, num_shards=options.shards)
            wait_until(is_feeding, "the feeder owns all shards", 120.0, 0.2)
        size = system.agent("measure_database_bytes")
        warm_up = min(options.timers, WARM_UP_TIMERS)
        warm = run_timer_burst(system, target, candidate, warm_up, f"{label}-warm", CREATED_PER_SECOND)
        rate = warm["created_per_second"] / 1.5
        measured = run_timer_burst(system, target, candidate, options.timers, label, rate)
        load = options.rate, options.seconds
        measured |= run_timer_load(system, target, candidate, load, f"{label}-steady", rate)
    measured |= {"relational_mb": size / 1e6, "due_read_ms": None}
    if candidate.server is not None:
        measured["due_read_ms"] = measure_due_reads(candidate, options.shards)
        measured |= measure_takes(candidate, options.shards, options.timers, label)
    return measured


def measure(workspace: Workspace, options: argparse.Namespace, report: Report) -> None:
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(start_target(workspace))
        stores: list[tuple[str, OpenStore | None]] = [(BUILT_IN, None)]
        stores += [(name, partial(open_server, name, url)) for name, url in _find_servers(options, report)]
        candidates = [
            stack.enter_context(prepare_candidate(workspace, target, name, open_store, options.shards))
            for name, open_store in stores
        ]
        for candidate in candidates:
            log_progress(f"{candidate.name}: {options.removed:,} timers are added and removed")
            remove_past_timers(candidate, options.shards, options.removed)
        rows: list[list[Any]] = []
        pending = 0
        for level in options.pending:
            sizes = {}
            for candidate in candidates:
                log_progress(f"{candidate.name}: {level:,} pending")
                sizes[candidate.name] = _fill(workspace, candidate, options.shards, level - pending)
            rounds: dict[str, list[Measured]] = {candidate.name: [] for candidate in candidates}
            for number in range(options.rounds):
                for candidate in rotate(candidates, number):
                    log_progress(
                        f"{level:,} pending, round {number + 1} of {options.rounds}: {candidate.name}"
                    )
                    label = f"{candidate.name}-{level}-{number}"
                    rounds[candidate.name].append(measure_once(workspace, candidate, target, options, label))
            pending = level
            report.figures[str(level)] = _summarize_level(rounds, sizes)
            rows += _build_rows(level, report.figures[str(level)])
    _add_tables(report, options, rows)


def _find_servers(options: argparse.Namespace, report: Report) -> list[tuple[str, str]]:
    """Return those of the servers that answer."""
    found: list[tuple[str, str]] = []
    for name, url in options.store or [(name, None) for name in SERVERS]:
        url = url or find_service_url(name)
        parts = urlsplit(url)
        try:
            socket.create_connection((parts.hostname or "", parts.port or 0), timeout=3).close()
        except OSError:
            report.add_note(f"{name} was left out: no server answers at {parts.hostname}:{parts.port}")
        else:
            found.append((name, url))
    # Not the URLs, which may contain passwords.
    report.options["store"] = [name for name, _ in found]
    return found


def _fill(workspace: Workspace, candidate: Candidate, shards: int, count: int) -> float | None:
    """Add pending timers, and return the bytes that each of them occupies in the store."""
    server = candidate.server
    before = server.measure_bytes() if server else None
    add_pending_timers(workspace, candidate, shards, count, f"pending-{time.time():.0f}")
    after = server.measure_bytes() if server else None
    return None if before is None or after is None else (after - before) / count


def _summarize_level(
    rounds: dict[str, list[Measured]], sizes: dict[str, float | None]
) -> dict[str, Measured]:
    figures = {}
    built_in = summarize_measured(rounds[BUILT_IN])
    for name, measured in rounds.items():
        summary = summarize_measured(measured)
        bytes_per_timer = sizes[name]
        summary["store_bytes_per_timer"] = None if bytes_per_timer is None else round(bytes_per_timer)
        if name != BUILT_IN:
            summary["ratio"] = {
                "fired_to_built_in": compute_ratio(
                    summary["fired_per_second"]["median"], built_in["fired_per_second"]["median"]
                ),
                "fed_to_built_in": compute_ratio(
                    summary["fed_per_second"]["median"], built_in["fired_per_second"]["median"]
                ),
                "fed_to_bare_takes": compute_ratio(
                    summary["fed_per_second"]["median"], summary["bare_takes_per_second"]["median"]
                ),
            }
        figures[name] = summary
    return figures


SYSTEM_COLUMNS = (
    "created_per_second",
    "fed_per_second",
    "fired_per_second",
    "removed_per_second",
    "lateness_p50_ms",
    "lateness_p99_ms",
    "relational_bytes_per_timer",
    "relational_mb",
)
STORE_COLUMNS = (
    "due_read_ms",
    "bare_takes_per_second",
    "store_takes_per_second",
    "bare_removals_per_second",
    "store_removals_per_second",
    "store_bytes_per_timer",
)
RATIOS = ("fired_to_built_in", "fed_to_built_in", "fed_to_bare_takes")


def _build_rows(level: int, figures: dict[str, Measured]) -> list[list[Any]]:
    """Return a row for each candidate: its name, and the figures of both tables."""
    return [
        [
            f"{name}, {level:,}",
            *(summary[column] for column in SYSTEM_COLUMNS),
            *(summary.get(column) for column in STORE_COLUMNS),
            *(summary.get("ratio", {}).get(ratio) for ratio in RATIOS),
        ]
        for name, summary in figures.items()
    ]


def _add_tables(report: Report, options: argparse.Namespace, rows: Sequence[Sequence[Any]]) -> None:
    end = 1 + len(SYSTEM_COLUMNS)
    report.add_table(
        f"{options.timers:,} timers with so many pending, created by {CLIENTS} clients; then {options.rate:g}/s",
        ["pending", *(name.replace("_", " ") for name in SYSTEM_COLUMNS)],
        [row[:end] for row in rows],
    )
    report.add_table(
        "The stores without the system, and ratios",
        ["pending", *(name.replace("_", " ") for name in (*STORE_COLUMNS, *RATIOS))],
        [[row[0], *row[end:]] for row in rows if not row[0].startswith(f"{BUILT_IN},")],
    )


def parse_store(text: str) -> tuple[str, str | None]:
    """Parse the name of a server, or `name=url`."""
    name, _, url = text.partition("=")
    if name not in SERVERS:
        raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(SERVERS)}")
    return name, url or None


def build_parser() -> argparse.ArgumentParser:
    parser = create_parser("stores", __doc__, rounds=3)
    parser.add_argument(
        "--store",
        type=parse_store,
        nargs="+",
        metavar="NAME[=URL]",
        help=f"the servers of the stores: {', '.join(SERVERS)}, as `make services` starts them, or at other URLs "
        "(default: all that are running)",
    )
    parser.add_argument(
        "--pending",
        type=parse_levels,
        default=[1_000, 100_000, 1_000_000],
        metavar="N,N,…",
        help="numbers of pending timers, in rising order (default: 1000,100000,1000000)",
    )
    parser.add_argument(
        "--timers", type=parse_positive, default=10_000, help="timers in a burst (default: %(default)s)"
    )
    parser.add_argument(
        "--removed",
        type=int,
        default=1_000_000,
        help="timers that were in the store before and have been removed (default: %(default)s)",
    )
    parser.add_argument(
        "--shards", type=parse_positive, default=256, help="shards of the namespace (default: %(default)s)"
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=100.0,
        help="due timers per second in the steady load (default: %(default)g)",
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="length of the steady load (default: %(default)g)"
    )
    return parser


if __name__ == "__main__":
    run_program(build_parser(), "stores", measure)
